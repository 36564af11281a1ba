"""Power of GPUs without a calibration: ResNet-50 on the V100 and A40 of the Zeus traces."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bars import Table
from wattloop.hardware.gpus import gpu_named
from wattloop.predict.models.kernels import KernelModel
from wattloop.predict.prediction import Placement

__all__ = ["PowerRow", "power_rows", "power_table"]

GPUS = {"v100": ("v100-pcie-32", "fp32"), "a40": ("a40", "tf32")}
"""Their name -> ours, and what torch computes convolutions in there unless told otherwise."""
IMAGES = 1_281_167
BATCHES = (32, 128, 256)


@dataclass(frozen=True)
class PowerRow:
    """One batch size on one GPU without a cap, measured and predicted by the data sheet."""

    gpu: str
    batch: int
    step_s: float
    power_w: float
    predicted_s: float
    predicted_w: float


def power_rows(folder: Path) -> list[PowerRow]:
    """Return ResNet-50 on ImageNet at the highest power limit; empty without the traces."""
    rows = []
    for gpu, (name, precision) in GPUS.items():
        path = folder / "zeus_nsdi23" / f"power_{gpu}.csv"
        if not path.is_file():
            continue
        with path.open(newline="") as file:
            lines = [line for line in csv.DictReader(file) if line["network"] == "resnet50"]
        highest = max(int(line["power_limit"]) for line in lines)
        model, placement = KernelModel.for_gpu(gpu_named(name)), Placement(gpu_named(name))
        for line in lines:
            batch = int(line["batch_size"])
            if int(line["power_limit"]) == highest and batch in BATCHES:
                found = model.predict(_resnet50(batch, precision), placement)
                step_s = float(line["time_per_epoch"]) * batch / IMAGES
                power_w = float(line["average_power"])
                rows.append(PowerRow(name, batch, step_s, power_w, found.step_s, found.power_w))
    return sorted(rows, key=lambda row: (row.gpu, row.batch))


def _resnet50(batch: int, precision: str) -> Any:
    import torch

    from predict_nets import resnet50
    from wattloop.predict import trace

    return trace(
        lambda: resnet50(1000),
        torch.empty(batch, 3, 224, 224, device="meta"),
        loss="cross_entropy",
        precision=precision,
        optimizer="sgd+momentum",
    )


def power_table(rows: list[PowerRow]) -> Table:
    """Table of measured and predicted power."""
    return Table(
        "Power without a calibration: ResNet-50 on ImageNet",
        ("GPU", "batch", "measured W", "predicted W", "error %", "measured ms", "predicted ms",
         "error %"),
        [
            (row.gpu, row.batch, row.power_w, row.predicted_w,
             100 * (row.predicted_w / row.power_w - 1), 1e3 * row.step_s, 1e3 * row.predicted_s,
             100 * (row.predicted_s / row.step_s - 1))
            for row in rows
        ],
        text="Uncapped rows of the Zeus traces (NSDI 2023), whose epochs include loading images "
        "and evaluation: where a loader is the bottleneck (A40), the measured step is longer and "
        "draws less. Predicted with the rules of all GPUs of the tables above.",
    )  # fmt: skip
