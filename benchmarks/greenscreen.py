"""GreenScreen's ten parameters end to end: the search, then the tables of its report.

    python benchmarks/greenscreen.py --runs benchmarks/data/h200/greenscreen.jsonl.gz
    python benchmarks/greenscreen.py [--full] [--store FILE] [--figures FOLDER] [--json FILE]

The first makes the page of runs that `greenscreen_gpu.py` has trained and measured on a GPU. The
second runs `examples/greenscreen/short.yaml` (half an hour and more on a CPU; stored runs are not
repeated) or, with `--full`, `space.yaml`: 100 runs of 50 epochs as in the paper, with the measured
energy of a GPU. For both, it shows the results of `wattloop analyze
top|ols|matrix|correlation|clusters`.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from bars import Bar, Page, Table, arguments, publish, shown
from wattloop.analyze import table
from wattloop.analyze.analysis_result import Findings
from wattloop.analyze.clusters import clusters
from wattloop.analyze.configuration_matrix import configuration_matrix
from wattloop.analyze.correlation import correlations
from wattloop.analyze.efficiency_quotient import top_runs
from wattloop.analyze.ols import Regression, regression
from wattloop.analyze.table_reader import table_of
from wattloop.cli.commands.analyze.command import AnalysisOptions, read_source
from wattloop.core.errors import ConfigError, WattloopError
from wattloop.store.database import open_store
from wattloop.store.experiments import list_experiments

ROOT = Path(__file__).resolve().parent.parent
SPEC = ROOT / "examples" / "greenscreen" / "short.yaml"
NAME = "greenscreen short"
FULL_SPEC, FULL_NAME = SPEC.with_name("space.yaml"), "greenscreen"
PARAMETERS = ("preprocessing", "augmentation", "precision", "batch_size", "partitioning", "lr",
              "lr_schedule", "optimizer", "optimizer_momentum", "internal")  # fmt: skip
RESULTS = ("energy_j", "time_s", "power_w", "epochs", "accuracy", "loss", "val_accuracy",
           "test_accuracy", "weight_bytes")  # fmt: skip
OF_AN_EPOCH = "energy_per_epoch_j"
TITLE = "GreenScreen's ten parameters, end to end"
PAPER = "GreenScreen, 80 of 100 runs of ResNet-50 on an RTX 3090"
TEXT = """
The ten-parameter space of Burmester, Kalcher and Reil (2023), random configurations, and the tables
that their report has. The training is `examples/greenscreen/train.py`: a small ResNet on 800 digits
of 32 x 32 pixels, four epochs, in a process of its own. The energy is that of the whole process,
start and compilation included. The paper's column is another model, data set and machine: its
numbers show what to expect of such a search, not what to reach.
"""
TEXT_GPU = """
The ten-parameter space of Burmester, Kalcher and Reil (2023), random configurations, each trained
on one NVIDIA GPU, and the tables that their report has. `benchmarks/greenscreen_gpu.py` trained one
after the other in one process, as a search of `wattloop.tune`, and read the energy of the GPU from
NVML's counter; nothing was set on the GPU. This is much smaller than the paper's search (ResNet-50
on CIFAR-100, 50 epochs, 7 days and 16 hours): a ResNet with {blocks} blocks ({widths}
channels) and {epochs} epochs of {images:,} digits of 32 x 32 pixels.
`greenscreen.py --full`, 100 runs of 50 epochs, has not been run. The paper's column shows what to
expect of such a search, not what to reach: in so few epochs a small batch learns most, because it
takes most steps, and it needs most energy for the same reason. So energy and accuracy go together
here, and not in the paper.

Energy and time are of the epochs with their validation. Set-up is left out: a forward and backward
pass of each batch size that occurs, and the compilation of `jit_compilation` (the first run of each
precision: {compiled} on average). The counter is updated ten times a second, so a training of less
than {least_s:g} s was repeated from the same weights and order until it had taken that long, and
the energy of an epoch is the mean of all its repetitions. A training took {shortest:.1f} to
{longest:.1f} s with its repetitions. Convolutions in float32 may use TF32, as is PyTorch's default.
"""
BUSY = """
An estimate follows time, and on a machine that others use, too, as this one was, time follows them:
part of every difference between runs is the load of others.
"""


def main(words: Sequence[str] | None = None) -> int:
    args = parsed(words)
    try:
        if args.runs is not None:
            publish(measured_page(read_runs(args.runs), args), args)
            return 0
        source = args.table or searched(args)
        chosen = {"parameters": ",".join(PARAMETERS), "results": ",".join(RESULTS)}
        rows = read_source(str(source), AnalysisOptions(store=str(args.store), **chosen))
        page = page_of(rows, args)
    except WattloopError as error:
        print(error, file=sys.stderr)
        return 2
    publish(page, args)
    return 0


def parsed(words: Sequence[str] | None) -> argparse.Namespace:
    parser = arguments("GreenScreen's ten parameters, end to end")
    parser.add_argument("--store", type=Path, default=ROOT / "build" / "greenscreen" / "runs.db",
                        help="where the search is kept, and gone on with")  # fmt: skip
    parser.add_argument("--table", type=Path, help="a search that was exported, in place of one")
    parser.add_argument("--runs", type=Path, help="runs of greenscreen_gpu.py, in place of one")
    parser.add_argument("--figures", type=Path, help="folder for the figures")
    parser.add_argument("--full", action="store_true", help="100 runs of 50 epochs on a GPU")
    return parser.parse_args(words)


def searched(args: argparse.Namespace) -> str:
    """Run or continue the search, and return its name."""
    args.store.parent.mkdir(parents=True, exist_ok=True)
    with open_store(str(args.store)) as store:
        known = {
            e.name for e in list_experiments(store) if e.kind == "search" and e.status == "finished"
        }
    name, spec = (FULL_NAME, FULL_SPEC) if args.full else (NAME, SPEC)
    words = ["--trials", "2"] if args.quick else []
    if args.full:
        if not has_gpu():
            raise ConfigError(
                "--full needs a GPU that PyTorch can use and whose energy is read; see "
                "'wattloop devices', or leave --full out"
            )
        words += ["--scope", "gpu"]
    if name not in known:
        wattloop(args, "tune", "run", str(spec), *words)
    return name


def has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def wattloop(args: argparse.Namespace, *words: str) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "wattloop", *words, "--store", str(args.store)],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        stdout=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        raise ConfigError(f"'wattloop {' '.join(words)}' ended with {done.returncode}")


class MeasuredRuns(NamedTuple):
    """Records of `greenscreen_gpu.py`: the machine and settings, and a row per run."""

    facts: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]

    @property
    def whole(self) -> list[Mapping[str, Any]]:
        """Return the runs that were trained to their end."""
        return [row for row in self.rows if row["energy_j"] is not None]


def read_runs(path: Path) -> MeasuredRuns:
    """Read a line about the machine, then one per run."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            facts, *runs = (json.loads(line) for line in file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    return MeasuredRuns(facts, [row_of(run) for run in runs])


def row_of(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters and results of a run; its first point is the network after set-up."""
    metrics, row = run["metrics"], {"run": run["run"], "status": run["status"]} | run["parameters"]
    if "trainings" not in metrics:  # it diverged, or was cut
        return row | dict.fromkeys((*RESULTS, OF_AN_EPOCH))
    first, last = run["curve"][0], run["curve"][-1]
    epochs = len(run["curve"]) - 1
    energy_j, time_s = (last[name] - first[name] for name in ("energy_j", "time_s"))
    return row | {
        "energy_j": energy_j,
        OF_AN_EPOCH: energy_j / epochs,
        "time_s": time_s,
        "power_w": energy_j / time_s,
        "epochs": epochs,
        "accuracy": metrics["accuracy"],
        "loss": last["loss"],
        "val_accuracy": last["val_accuracy"],
        "test_accuracy": metrics["test_accuracy"],
        "weight_bytes": metrics["weight_bytes"],
        "setup_j": first["energy_j"],
        "setup_s": metrics["setup_s"],
        "counter_j": metrics["counter_j"],
        "provenance": run["provenance"],
    }


COMPILES_S = 5.0
"""A set-up that takes longer has compiled: the others take a tenth of a second."""


def measured_page(found: MeasuredRuns, args: argparse.Namespace) -> Page:
    facts, whole = found.facts, found.whole
    known = {row["provenance"] for row in whole}
    names = ("run", "status", *PARAMETERS, *RESULTS, OF_AN_EPOCH)
    rows = table_of(
        [{name: row[name] for name in names} for row in found.rows],
        name=FULL_NAME,
        parameters=PARAMETERS,
        results=(*RESULTS, OF_AN_EPOCH),
        source=f"energy of gpu, {' and '.join(sorted(known))}",
    )
    setups = [row for row in whole if row["setup_s"] > COMPILES_S]
    compiled = f"{len(setups)} runs, {fmean(row['setup_j'] for row in setups or whole):,.0f} J"
    text = TEXT_GPU.format(
        blocks=len(facts["widths"]),
        widths=", ".join(map(str, facts["widths"])),
        epochs=facts["epochs"],
        images=facts["images"],
        compiled=compiled if setups else "none",
        least_s=facts["least_s"],
        shortest=min(row["time_s"] for row in whole),
        longest=max(row["time_s"] for row in whole),
    )
    told = analysed(rows, args, OF_AN_EPOCH)
    return Page(
        "greenscreen", TITLE, [*told.bars, *counter_bars(found)],
        [*(by_level(found, name) for name in ("batch_size", "precision")), *told.tables],
        f"{text}\n{told.text}",
        packages=("wattloop", "scipy", "scikit-learn"),
        versions={"torch": facts["torch"]},
        machine=f"{facts['device']}; {facts['machine']}",
        command=f"greenscreen.py --runs {shown_path(args.runs)}",
        made=facts["made"],
    )  # fmt: skip


def shown_path(path: Path) -> str:
    """Return the path below the repository; the name alone for a path elsewhere."""
    whole = path.resolve()
    return str(whole.relative_to(ROOT)) if whole.is_relative_to(ROOT) else path.name


def counter_bars(found: MeasuredRuns) -> list[Bar]:
    """Bars of the agreement between the epochs' energy and NVML's counter, read by the training."""
    apart = [abs(r["energy_j"] / r["counter_j"] - 1) for r in found.whole if r["counter_j"]]
    failed = [row for row in found.rows if row["status"] == "diverged"]
    idle_w = found.facts["idle_w"]
    return [
        Bar("diverged", len(failed), "", baselines={"paper": "20 of 100 not used"},
            note=f"{sum(row['precision'] == 'float16' for row in failed)} of them in float16"),
        Bar("counter_difference", 100 * median(apart) if apart else None, "%",
            note="median difference from NVML's counter read by the training itself, which is up "
            "to a tenth of a second old at either end"),
        Bar("counter_difference_worst", 100 * max(apart) if apart else None, "%"),
        Bar("idle_power", idle_w, "W", note="of the GPU with a context and no work"),
    ]  # fmt: skip


def by_level(found: MeasuredRuns, name: str) -> Table:
    """Return medians of the runs with each level of a parameter."""
    cells = []
    for level in dict.fromkeys(sorted((row[name] for row in found.rows), key=str)):
        own = [row for row in found.rows if row[name] == level]
        whole = [row for row in own if row["energy_j"] is not None]
        middles = (median(row[key] for row in whole) for key in
                   (OF_AN_EPOCH, "power_w", "val_accuracy"))  # fmt: skip
        cells.append([str(level), len(whole), len(own) - len(whole), *middles])
    cells.sort(key=lambda row: row[3])
    header = [name, "runs", "diverged", "energy per epoch (J)", "power (W)", "val_accuracy"]
    return Table(f"Medians by {name.replace('_', ' ')}", header, cells)


class Analysed(NamedTuple):
    """Bars, tables and sentences about a table of runs."""

    bars: list[Bar]
    tables: list[Table]
    text: str


def page_of(rows: table.RunTable, args: argparse.Namespace) -> Page:
    told = analysed(rows, args, "energy_j")
    text = f"{TEXT}\n{told.text}\n{BUSY if 'estimated' in rows.source else ''}"
    return Page("greenscreen", TITLE, told.bars, told.tables, text,
                packages=("wattloop", "keras", "torch", "scipy", "scikit-learn"))  # fmt: skip


def analysed(rows: table.RunTable, args: argparse.Namespace, energy: str) -> Analysed:
    """Analyse as in the paper's report; `energy` is the explained column."""
    top = top_runs(rows, count=5)
    found: list[Findings] = [top, *top.others]
    said = [f"{(rows.source or 'energy').capitalize()}."]
    said += [f"Left out: {n} {why}." for why, n in rows.left_out.items()]
    bars = [Bar("runs", len(rows), "", note=f"baseline: {PAPER}", baselines={"paper": "80"})]
    bars += quality_bars(rows, energy)
    tables = [as_table(one) for one in found]
    fitted = attempted(lambda: regression(rows, energy))
    if isinstance(fitted, Regression):
        bars += regression_bars(fitted)
        said.append(verdict(fitted))
        tables += [
            as_table(fitted, "OLS of the energy over all levels"),
            *map(as_table, fitted.others),
        ]
    for metric in ("val_accuracy", energy):
        matrix = attempted(lambda metric=metric: configuration_matrix(rows, metric))
        if matrix is not None:
            tables.append(as_table(matrix, f"Levels by where their runs stand in {metric}", 12))
    grouped = attempted(lambda: clusters(rows, "results", results=(energy, "val_accuracy")))
    if grouped is not None:
        tables += [turned(grouped), *(as_table(o) for o in grouped.others if o.name == "influence")]
    if args.figures is not None:
        drawn(rows, args.figures, energy)
    return Analysed(bars, tables, " ".join(said))


def quality_bars(rows: table.RunTable, energy: str) -> list[Bar]:
    accuracy = rows.numbers("val_accuracy")
    pair = correlations(rows, energy)
    r = next((row["r"] for row in pair.rows if "val_accuracy" in row.values()), None)
    return [
        Bar("above_80pct_share", float((accuracy > 0.8).mean()), "", baselines={"paper": "0.13"},
            note="runs with a validation accuracy above 80%"),
        Bar("below_20pct_share", float((accuracy < 0.2).mean()), "",
            baselines={"paper": "most"}, note="runs that hardly learned"),
        Bar("energy_accuracy_correlation", r, "", baselines={"paper": "-0.39"},
            note="Pearson's r of energy and validation accuracy"),
    ]  # fmt: skip


def regression_bars(fitted: Regression) -> list[Bar]:
    return [
        Bar("r2", fitted.r2, "", baselines={"paper": "0.942"}, note="OLS of the energy"),
        Bar("adjusted_r2", fitted.adjusted_r2, "", baselines={"paper": "0.906"}),
        Bar("cross_validated_r2", fitted.cv_r2, "", baselines={"paper": "not taken"},
            note="of runs it was not fitted to: what the table is worth"),
        Bar("f", fitted.f, "", baselines={"paper": "26.49"}),
    ]  # fmt: skip


def verdict(fitted: Regression) -> str:
    """Name the parameters with significant F tests, and the strength of the regression."""
    (by_parameter,) = fitted.others
    names = [row["parameter"] for row in by_parameter.rows if (row["p"] or 1) < 0.05]
    told = ", ".join(names) or "no parameter"
    worth = (
        ""
        if (fitted.cv_r2 or 0) > 0
        else " On runs it was not fitted to it explains nothing:"
        " as in the paper, parameters are many for the runs."
    )
    return f"Of the ten, the regression singles out {told} (p < 0.05).{worth}"


def attempted(analysis: Any) -> Any:
    """Run an analysis; with too few rows print the reason and return None."""
    try:
        return analysis()
    except ConfigError as error:
        print(f"left out: {error}", file=sys.stderr)
        return None


def as_table(found: Findings, title: str = "", most: int = 100) -> Table:
    said = [*found.notes, *(f"Warning: {warning}" for warning in found.warnings)]
    named = title or found.title.partition(": ")[2].capitalize()
    return Table(named, found.headers, found.cells()[:most], "; ".join(said))


def turned(found: Findings) -> Table:
    """Return a row per column and a column per cluster, since a page is too narrow for all
    columns.
    """
    names: Mapping[str, str] = found.columns
    keys = [key for key in names if key != "cluster"]
    header = ["", *(f"cluster {row['cluster']}" for row in found.rows)]
    cells = [[names[key], *(shown(row.get(key)) for row in found.rows)] for key in keys]
    facts = ", ".join(f"{name}: {shown(value)}" for name, value in found.facts.items())
    return Table("Means of clusters", header, cells, facts)


def drawn(rows: table.RunTable, folder: Path, energy: str) -> None:
    from wattloop.report.figures.clusters import cluster_figures
    from wattloop.report.figures.render import save
    from wattloop.report.figures.search import matrix_figures
    from wattloop.report.figures.statistics import regression_figures

    figures: dict[str, Any] = {}
    figures |= matrix_figures(configuration_matrix(rows, "val_accuracy"))
    figures |= cluster_figures(clusters(rows, "hybrid"))
    fitted = attempted(lambda: regression(rows, energy))
    if fitted is not None:
        figures |= regression_figures(fitted)
    save(figures, folder, title=NAME)


if __name__ == "__main__":
    sys.exit(main())
