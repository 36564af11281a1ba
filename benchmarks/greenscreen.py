"""GreenScreen's ten parameters end to end: the search, then the tables of its report.

    python benchmarks/greenscreen.py [--full] [--store FILE] [--figures FOLDER] [--json FILE]

Runs `examples/greenscreen/short.yaml` (half an hour and more on a CPU; what is in the store is not
run again), then what `wattloop analyze top|ols|matrix|correlation|clusters` says of it. `--full`
runs `space.yaml` instead, 100 runs of 50 epochs as in the paper, with the measured energy of a GPU.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bars import Bar, Page, Table, arguments, publish, shown
from wattloop.analyze import table
from wattloop.analyze.analysis_result import Findings
from wattloop.analyze.clusters import clusters
from wattloop.analyze.configuration_matrix import configuration_matrix
from wattloop.analyze.correlation import correlations
from wattloop.analyze.efficiency_quotient import top_runs
from wattloop.analyze.ols import Regression, regression
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
PAPER = "GreenScreen, 80 of 100 runs of ResNet-50 on an RTX 3090"
TEXT = """
The ten-parameter space of Burmester, Kalcher and Reil (2023), random configurations, and the tables
that their report has. The training is `examples/greenscreen/train.py`: a small ResNet on 800 digits
of 32 x 32 pixels, four epochs, in a process of its own. The energy is that of the whole process,
start and compilation included. The paper's column is another model, data set and machine: its
numbers show what to expect of such a search, not what to reach.
"""
BUSY = """
An estimate follows time, and on a machine that others use, too, as this one was, time follows them:
part of every difference between runs is the load of others.
"""


def main(words: Sequence[str] | None = None) -> int:
    args = parsed(words)
    try:
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
    parser.add_argument("--figures", type=Path, help="folder for the figures")
    parser.add_argument("--full", action="store_true", help="100 runs of 50 epochs on a GPU")
    return parser.parse_args(words)


def searched(args: argparse.Namespace) -> str:
    """The name of the search, which is gone on with where it was stopped."""
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


def page_of(rows: table.RunTable, args: argparse.Namespace) -> Page:
    top = top_runs(rows, count=5)
    found: list[Findings] = [top, *top.others]
    said = [f"{(rows.source or 'energy').capitalize()}."]
    said += [f"Left out: {n} {why}." for why, n in rows.left_out.items()]
    bars = [Bar("runs", len(rows), "", note=f"baseline: {PAPER}", baselines={"paper": "80"})]
    bars += quality_bars(rows)
    tables = [as_table(one) for one in found]
    fitted = attempted(lambda: regression(rows, "energy_j"))
    if isinstance(fitted, Regression):
        bars += regression_bars(fitted)
        said.append(verdict(fitted))
        tables += [
            as_table(fitted, "OLS of the energy over all levels"),
            *map(as_table, fitted.others),
        ]
    for metric in ("val_accuracy", "energy_j"):
        matrix = attempted(lambda metric=metric: configuration_matrix(rows, metric))
        if matrix is not None:
            tables.append(as_table(matrix, f"Levels by where their runs stand in {metric}", 12))
    grouped = attempted(lambda: clusters(rows, "results", results=("energy_j", "val_accuracy")))
    if grouped is not None:
        tables += [turned(grouped), *(as_table(o) for o in grouped.others if o.name == "influence")]
    if args.figures is not None:
        drawn(rows, args.figures)
    text = f"{TEXT}\n{' '.join(said)}\n{BUSY if 'estimated' in rows.source else ''}"
    return Page("greenscreen", "GreenScreen's ten parameters, end to end", bars, tables, text,
                packages=("wattloop", "keras", "torch", "scipy", "scikit-learn"))  # fmt: skip


def quality_bars(rows: table.RunTable) -> list[Bar]:
    accuracy = rows.numbers("val_accuracy")
    pair = correlations(rows, "energy_j")
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
    """Which parameters the F tests of the regression single out, and what it is worth."""
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
    """What it finds; None, said, where the rows are too few."""
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
    """A row per column and a column per cluster: there are more columns than a page is wide."""
    names: Mapping[str, str] = found.columns
    keys = [key for key in names if key != "cluster"]
    header = ["", *(f"cluster {row['cluster']}" for row in found.rows)]
    cells = [[names[key], *(shown(row.get(key)) for row in found.rows)] for key in keys]
    facts = ", ".join(f"{name}: {shown(value)}" for name, value in found.facts.items())
    return Table("Means of clusters", header, cells, facts)


def drawn(rows: table.RunTable, folder: Path) -> None:
    from wattloop.report.figures.clusters import cluster_figures
    from wattloop.report.figures.render import save
    from wattloop.report.figures.search import matrix_figures
    from wattloop.report.figures.statistics import regression_figures

    figures: dict[str, Any] = {}
    figures |= matrix_figures(configuration_matrix(rows, "val_accuracy"))
    figures |= cluster_figures(clusters(rows, "hybrid"))
    fitted = attempted(lambda: regression(rows, "energy_j"))
    if fitted is not None:
        figures |= regression_figures(fitted)
    save(figures, folder, title=NAME)


if __name__ == "__main__":
    sys.exit(main())
