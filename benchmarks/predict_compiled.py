"""Predicted against measured compiled training steps on an H200.

    python benchmarks/predict_compiled.py            # prints the tables
    python benchmarks/predict_compiled.py --write    # and writes the page in docs/benchmarks

Rows come from `collect_compiled.py` (benchmarks/data/h200/compiled_steps.jsonl.gz): every compiled
step next to its eager twin.
"""

import argparse
import gzip
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
DATA = HERE / "data" / "h200" / "compiled_steps.jsonl.gz"
PAGE = HERE.parent / "docs" / "benchmarks" / "predict_compiled.md"
TIME_BAR, POWER_BAR = 10.0, 8.0
"""Mean errors in percent that are asked for."""
HOST = ("triton", "library", "convolution", "replay", "parameter")
"""Constants of the host that were fitted to these rows, `host.compiled.*_s`."""
WAITING = 0.85
"""Share of the GPU's time in a step, below which it waits for the host."""


@dataclass(frozen=True)
class Judged:
    """One measured step with its predictions.

    Attributes:
        row: as collected.
        workload: traced as compiled.
        predicted: by the shipped constants.
        left_out: step and power by constants of the host fitted without this network.
        eager_s, eager_w: prediction of the eager step.
        kernel_s: time of all kernels in the profile; None where there is none.
    """

    row: Mapping[str, Any]
    workload: Any
    predicted: Any
    left_out: tuple[float, float]
    eager_s: float
    eager_w: float
    kernel_s: float | None

    @property
    def network(self) -> str:
        return str(self.row["model"]).partition("@")[0]

    @property
    def waits(self) -> bool:
        return self.kernel_s is not None and self.kernel_s < WAITING * self.row["step_s"]

    def error(self, step_s: float) -> float:
        return 100 * (step_s / self.row["step_s"] - 1)

    def power_error(self, power_w: float) -> float:
        return 100 * (power_w / self.row["avg_power_w"] - 1)


def collected(path: Path = DATA) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()).decode()
    return [json.loads(line) for line in text.splitlines()]


def workload_of(row: Mapping[str, Any], mode: str | None) -> Any:
    """Trace the step of a row, as `collect_compiled.py` trains it."""
    import torch

    from wattloop.predict import trace

    if str(HERE) not in sys.path:
        sys.path.insert(0, str(HERE))
    import predict_nets  # noqa: F401 - `predict_zoo` imports it later, without this folder
    import predict_zoo
    from predict_later_nets import subject

    # transformers takes kernels.py of this folder for a package
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != HERE]

    name, batch = row["model"], row["batch"]
    loss: Any
    with torch.device("meta"):
        if name in predict_zoo.ZOO:
            entry = predict_zoo.ZOO[name]
            model, inputs, loss = entry.factory(), entry.inputs(batch), entry.loss
        else:
            chosen = subject(name)
            model, inputs, loss = chosen.model, chosen.inputs(batch, torch.device("meta")), _own
    pure = row["precision"] == "bf16-pure"
    if pure:
        model = model.to(torch.bfloat16)
    return trace(
        model, inputs, loss=loss, precision="fp32" if pure else row["precision"],
        optimizer="sgd+momentum" if row["optimizer"] == "sgd" else row["optimizer"],
        style=row.get("style", "foreach"), name=name, compile=mode,
    )  # fmt: skip


def _own(output: Any) -> Any:
    return output


def judged(rows: Sequence[Mapping[str, Any]]) -> list[Judged]:
    """Predict every compiled row, also by constants of the host that never saw its network."""
    from dataclasses import replace

    from wattloop.hardware.gpus import gpu_named
    from wattloop.predict.models.kernels import KernelModel
    from wattloop.predict.prediction import Placement

    gpu = gpu_named("h200")
    model, place = KernelModel.for_gpu(gpu), Placement(gpu=gpu)
    profiles = {_key(row): row["profile"] for row in rows if "profile" in row}
    traced: dict[tuple[object, ...], Any] = {}
    eager: dict[tuple[object, ...], Any] = {}
    found = []
    for row in rows:
        if "step_s" not in row or not row["avg_power_w"]:
            continue
        setting = _key(row)[:3]
        if setting not in traced:
            print(f"tracing {' '.join(map(str, setting))}", file=sys.stderr, flush=True)
            traced[setting] = workload_of(row, "default")
            eager[setting] = model.predict(workload_of(row, None), place)
        if row["mode"] == "eager":
            continue
        work = replace(traced[setting], compile_mode=row["mode"])
        kernels = profiles.get(_key(row))
        kernel_s = sum(us for _, _, us in kernels) * 1e-6 if kernels else None
        twin = eager[setting]
        found.append(
            Judged(
                row, work, model.predict(work, place), (0, 0), twin.step_s, twin.power_w, kernel_s
            )
        )
    constants = {
        network: _host_without(network, found, model) for network in {e.network for e in found}
    }
    left_out = []
    for each in found:
        values = model.kernel_constants.with_values(constants[each.network])
        seen = KernelModel(values).predict(each.workload, place)
        left_out.append(replace(each, left_out=(seen.step_s, seen.power_w)))
    return left_out


def _key(row: Mapping[str, Any]) -> tuple[object, ...]:
    return row["model"], row["batch"], row["precision"], row["mode"]


def _host_without(network: str, rows: Sequence[Judged], model: Any) -> dict[str, float]:
    """Constants of the host from all other networks: steps that wait for it, in relative error."""
    from scipy.optimize import nnls

    from wattloop.predict.models.kernels.step import host_counts, host_seconds

    values = model.kernel_constants.values
    found: dict[str, float] = {}
    for mode, names in (("default", HOST[:3]), ("reduce-overhead", HOST[3:])):
        matrix, targets = [], []
        for each in rows:
            if each.network == network or each.row["mode"] != mode or not each.waits:
                continue
            counts = host_counts(each.workload).one_pass
            sums = [sum(n for k, n in counts.items() if f".{name}_s" in k) for name in names]
            own_s = sum(
                float(values.find(f"host.compiled.{name}_s")) * number
                for name, number in zip(names, sums, strict=True)
            )
            rest_s = sum(host_seconds(host_counts(each.workload), values)) - own_s
            left_s = each.row["step_s"] - rest_s
            if left_s > 0:
                matrix.append([number / left_s for number in sums])
                targets.append(1.0)
        if len(targets) > len(names):
            fitted, _ = nnls(np.array(matrix), np.array(targets))
            found |= {f"host.compiled.{n}_s": float(v) for n, v in zip(names, fitted, strict=True)}
    return found


def roofline(rows: Sequence[Judged]) -> list[float]:
    """Step times of FLOPs and bytes with one constant each, fitted to all rows."""
    from scipy.optimize import nnls

    work = np.array(
        [
            [
                sum(op.flops * op.count for op in each.workload.operations),
                sum(op.bytes_moved * op.count for op in each.workload.operations),
            ]
            for each in rows
        ]
    )
    measured = np.array([each.row["step_s"] for each in rows])
    fitted, _ = nnls(work / measured[:, None], np.ones(len(rows)))
    return [float(value) for value in work @ fitted]


def mean(values: Sequence[float]) -> float:
    return statistics.mean(abs(value) for value in values)


def page(rows: Sequence[Judged]) -> str:
    """The tables in Markdown."""
    simple = roofline(rows)

    def line(name: str, chosen: Callable[[Judged], bool]) -> str:
        picked = [(each, s) for each, s in zip(rows, simple, strict=True) if chosen(each)]
        some = [each for each, _ in picked]
        cells = (
            mean([e.error(e.predicted.step_s) for e in some]),
            mean([e.error(e.left_out[0]) for e in some]),
            mean([e.error(e.eager_s) for e in some]),
            mean([e.error(s) for e, s in picked]),
            mean([e.power_error(e.predicted.power_w) for e in some]),
            mean([e.power_error(e.left_out[1]) for e in some]),
            mean([e.power_error(e.eager_w) for e in some]),
        )
        return f"| {name} | {len(some)} | " + " | ".join(f"{cell:.1f}" for cell in cells) + " |"

    table = [
        "| steps | rows | time | left out | as eager | roofline | power | left out | as eager |",
        "|---|---|---|---|---|---|---|---|---|",
        line("all", lambda e: True),
        line("`default`", lambda e: e.row["mode"] == "default"),
        line("`reduce-overhead`", lambda e: e.row["mode"] != "default"),
        line("that wait for the host", lambda e: e.waits),
        line("that load the GPU", lambda e: not e.waits),
    ]
    columns = (
        "network", "batch", "precision", "mode", "kernels, ms", "predicted", "step, ms",
        "predicted", "error", "power, W", "predicted", "error",
    )  # fmt: skip
    each = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for e in rows:
        row, p = e.row, e.predicted
        kernel = "" if e.kernel_s is None else f"{e.kernel_s * 1e3:.1f}"
        each.append(
            f"| {row['model']} | {row['batch']} | {row['precision']} | {row['mode']} | {kernel} | "
            f"{p.gpu_s * 1e3:.1f} | {row['step_s'] * 1e3:.2f} | {p.step_s * 1e3:.2f} | "
            f"{e.error(p.step_s):+.1f}% | {row['avg_power_w']:.0f} | {p.power_w:.0f} | "
            f"{e.power_error(p.power_w):+.1f}% |"
        )
    memory = [
        100 * (e.workload.peak_bytes / (e.row["peak_mem_gib"] * 2**30) - 1)
        for e in rows
        if e.row["mode"] == "default"
    ]
    saved = [
        100 * (e.workload.activation_bytes / (e.row["activation_gib"] * 2**30) - 1)
        for e in rows
        if e.row["mode"] == "default" and e.row["activation_gib"] > 0
    ]
    time = mean([e.error(e.left_out[0]) for e in rows])
    power = mean([e.power_error(e.left_out[1]) for e in rows])
    networks = len({e.network for e in rows})
    return TEXT.format(
        rows=len(rows), networks=networks, table="\n".join(table), each="\n".join(each),
        time=time, power=power, time_bar=TIME_BAR, power_bar=POWER_BAR,
        time_met="met" if time <= TIME_BAR else "missed",
        power_met="met" if power <= POWER_BAR else "missed",
        memory=mean(memory), saved=mean(saved),
    )  # fmt: skip


TEXT = """# Compiled training steps on an H200

`python benchmarks/predict_compiled.py --write` writes this page. {rows} steps of {networks}
networks under `torch.compile` (torch 2.11, CUDA 13.0), measured with
`benchmarks/collect_compiled.py` on one H200, and predicted from a trace
([predict-compiled.md](../predict-compiled.md)).

| bar | judged | asked for | |
|---|---|---|---|
| mean error of time, network left out | {time:.1f}% | {time_bar:.0f}% | {time_met} |
| mean error of power, network left out | {power:.1f}% | {power_bar:.0f}% | {power_met} |

Mean errors in percent:

{table}

- **time, power**: by the shipped constants. What differs from eager steps are five times of the
  host, four efficiencies of generated kernels and four factors of attention. They were set
  while these rows were in view.
- **left out**: the five times of the host are fitted again without the network that is
  predicted. The others are not: they were read off profiles, kernel by kernel.
- **as eager**: the prediction of the same step without `--compile`.
- **roofline**: FLOPs and bytes of the compiled step with a constant each, fitted to all rows.
- Steps *wait for the host* where the kernels of the profile take less than 85% of the step.

Peak memory of `default` steps: {memory:.1f}% mean error; what forward saves for backward:
{saved:.1f}%.

## Row by row

`kernels` is the sum of all kernels in a profile, `predicted` next to it the GPU's time.

{each}

## What is not predicted

- Graph breaks. Dynamo splits BART into seven graphs and T5 into six; each adds work of the host.
- The host differs from minute to minute by 7%, from machine to machine by a third. These rows
  are of one sitting.
- Recurrent layers, which Dynamo leaves to the interpreter, have the errors of eager ones.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    options = parser.parse_args()
    text = page(judged(collected()))
    print(text)
    if options.write:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
