"""Predicted against measured compiled training steps on an H200.

    python benchmarks/predict_compiled.py            # prints the tables
    python benchmarks/predict_compiled.py --write    # and writes docs/benchmarks/predict_compiled.md

Rows come from `collect_compiled.py` (benchmarks/data/h200/compiled_steps.jsonl.gz): every compiled
step next to its eager twin. Baselines: the eager prediction of the same step, and a roofline with
two constants fitted to all rows.
"""

import argparse
import gzip
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DATA = HERE / "data" / "h200" / "compiled_steps.jsonl.gz"
PAGE = HERE.parent / "docs" / "benchmarks" / "predict_compiled.md"
TIME_BAR, POWER_BAR = 10.0, 8.0
"""Mean errors in percent that are asked for."""


@dataclass(frozen=True)
class Judged:
    """One measured step with its predictions.

    Attributes:
        row: as collected.
        step_s, power_w, compile_s: predicted.
        eager_step_s: predicted for the eager step.
        roofline_s: of peaks, before the two constants.
        activation_bytes: predicted.
    """

    row: Mapping[str, Any]
    step_s: float
    power_w: float
    eager_step_s: float
    eager_power_w: float
    flops: float
    bytes: float

    @property
    def network(self) -> str:
        return str(self.row["model"]).partition("@")[0]

    @property
    def time_error(self) -> float:
        return 100 * (self.step_s / self.row["step_s"] - 1)

    @property
    def power_error(self) -> float:
        return 100 * (self.power_w / self.row["avg_power_w"] - 1)


def measured_rows(path: Path = DATA) -> list[dict[str, Any]]:
    """Rows of finished measurements."""
    text = gzip.decompress(path.read_bytes()).decode()
    rows = [json.loads(line) for line in text.splitlines()]
    return [row for row in rows if "step_s" in row and row["avg_power_w"]]


def workload_of(row: Mapping[str, Any], mode: str | None) -> Any:
    """Trace the step of a row, as `collect_compiled.py` trains it."""
    import torch

    from wattloop.predict import trace

    if str(HERE) not in sys.path:
        sys.path.insert(0, str(HERE))
    import predict_nets  # noqa: F401 - `predict_zoo` imports it later, without this folder
    import predict_zoo

    # transformers takes kernels.py of this folder for a package
    sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != HERE]
    from wattloop.predict.calibrate.zoo import subject

    name, batch, loss = row["model"], row["batch"], None
    with torch.device("meta"):
        if name in predict_zoo.ZOO:
            entry = predict_zoo.ZOO[name]
            model, inputs, loss = entry.factory(), entry.inputs(batch), entry.loss
        else:
            chosen = subject(name)
            model, inputs = chosen.model, chosen.inputs(batch, torch.device("meta"))
            loss = _own
    pure = row["precision"] == "bf16-pure"
    if pure:
        model = model.to(torch.bfloat16)
        if isinstance(inputs, tuple):
            inputs = tuple(x.to(torch.bfloat16) if x.is_floating_point() else x for x in inputs)
    return trace(
        model, inputs, loss=loss, precision="fp32" if pure else row["precision"],
        optimizer="sgd+momentum" if row["optimizer"] == "sgd" else row["optimizer"],
        style=row.get("style", "foreach"), name=name, compile=mode,
    )  # fmt: skip


def _own(output: Any) -> Any:
    return output


def judged(rows: Sequence[Mapping[str, Any]]) -> list[Judged]:
    """Predict every row; of the host one number is told, how quick it was with eager steps."""
    from wattloop.hardware.gpus import gpu_named
    from wattloop.predict.models.kernels import KernelModel
    from wattloop.predict.prediction import Placement

    gpu = gpu_named("h200")
    model = KernelModel.for_gpu(gpu)
    found = []
    eager: dict[tuple[object, ...], Any] = {}
    for row in rows:
        mode = None if row["mode"] == "eager" else str(row["mode"])
        key = (row["model"], row["batch"], row["precision"], row.get("style"))
        if key not in eager:
            eager[key] = model.predict(workload_of(row, None), Placement(gpu=gpu))
        if mode is None:
            continue
        work = workload_of(row, mode)
        predicted = model.predict(work, Placement(gpu=gpu))
        flops = sum(op.flops * op.count for op in work.operations)
        moved = sum(op.bytes_moved * op.count for op in work.operations)
        found.append(
            Judged(
                row, predicted.step_s, predicted.power_w, eager[key].step_s, eager[key].power_w,
                flops, moved,
            )  # fmt: skip
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    options = parser.parse_args()
    rows = judged(measured_rows())
    for each in rows:
        row = each.row
        print(
            f"{row['model']:24} {row['batch']:5} {row['precision']:5} {row['mode']:16}"
            f"{row['step_s'] * 1e3:9.2f} ms {each.step_s * 1e3:9.2f} {each.time_error:+6.1f}%"
            f"{row['avg_power_w']:7.0f} W {each.power_w:6.0f} {each.power_error:+6.1f}%"
        )
    print(f"time {statistics.mean(abs(e.time_error) for e in rows):.1f}% mean")
    print(f"power {statistics.mean(abs(e.power_error) for e in rows):.1f}% mean")


if __name__ == "__main__":
    main()
