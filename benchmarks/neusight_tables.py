"""Tables of the page: by GPU, by network, every row, fitted values, agreement of data sheets."""

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from bars import Table
from neusight_rows import PEERS
from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import gpu_named
from wattloop.predict.models.kernels.datasheet import FITTED, SpecRules

if TYPE_CHECKING:
    from predict_neusight import Outcome

__all__ = ["errors_of", "tables"]

WORST = 6


def tables(
    outcomes: Sequence["Outcome"], found: Mapping[str, SpecRules], folder: Path
) -> list[Table]:
    """Return all tables."""
    return [
        _parts("By GPU", "GPU", outcomes, lambda o: o.row.gpu),
        _parts("By network", "network", outcomes, lambda o: o.row.network),
        _worst(outcomes),
        _fitted(found),
        _data_sheets(folder),
        _all(outcomes),
    ]


def errors_of(outcomes: Sequence["Outcome"], who: str) -> list[float]:
    """Return signed errors in percent, of the rows that `who` predicts."""
    return [100 * o.error(who) for o in outcomes if who in o.predicted]


def _parts(
    title: str, head: str, outcomes: Sequence["Outcome"], part: Callable[["Outcome"], str]
) -> Table:
    rows = []
    for name in dict.fromkeys(map(part, outcomes)):
        members = [o for o in outcomes if part(o) == name]
        errors = [100 * o.error() for o in members]
        found = [errors_of(members, who) for who in (*PEERS, "our roofline")]
        peers = [fmean(map(abs, of)) if of else None for of in found]
        rows.append((name, len(members), fmean(map(abs, errors)), fmean(errors), *peers))
    return Table(
        title,
        (head, "rows", "mean error %", "bias %", *PEERS, "our roofline"),
        rows,
    )  # fmt: skip


def _worst(outcomes: Sequence["Outcome"]) -> Table:
    worst = sorted(outcomes, key=lambda o: -abs(o.error()))[:WORST]
    return Table(
        "Worst rows",
        ("GPU", "row", "measured ms", "predicted ms", "error %", "NeuSight %"),
        [
            (o.row.gpu, o.row.name, 1e3 * o.row.seconds, 1e3 * o.predicted["wattloop"],
             100 * o.error(), *(errors_of([o], "NeuSight") or [None]))
            for o in worst
        ],
    )  # fmt: skip


def _fitted(found: Mapping[str, SpecRules]) -> Table:
    start = SpecRules()
    return Table(
        "What the other GPUs say",
        ("left out", *FITTED),
        [
            ("(before any fit)", *(getattr(start, name) for name in FITTED)),
            *((gpu, *(getattr(rules, name) for name in FITTED)) for gpu, rules in found.items()),
        ],
        text="Factors on the constants of the calibrated GPU: share of the peak that products "
        "reach, the same for fp32 with issue slots to spare, share of bandwidth, energy per FLOP.",
    )


def _data_sheets(folder: Path) -> Table:
    """Table of `devices.csv` against Wattloop's table of GPUs."""
    with (folder / "devices.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    rows = []
    for line in lines:
        try:
            gpu = gpu_named(line["gpu"].replace("_", " "))
        except ConfigError:
            continue  # the fictitious pair of GPUs
        rows.append(
            (
                gpu.name,
                gpu.memory_bytes_s / 1e9,
                float(line["mem_bw_gbs"]),
                gpu.vector_flops["fp32"] / 1e12,
                float(line["fp32_gflops"] or line["fp32_vec_gflops"]) / 1e3,
                gpu.sms,
                int(line["num_sm"]),
                gpu.l2_bytes / 2**20,
                float(line["l2_mb"]),
            )
        )
    return Table(
        "Data sheets: ours and theirs",
        ("GPU", "GB/s", "theirs", "fp32 TFLOP/s", "theirs", "SMs", "theirs", "L2 MiB", "theirs"),
        rows,
        text="They give the P4 40 halves of its 20 SMs, the L4 the SMs of the whole die, the P100 "
        "a clock of 1380 MHz (1303 in the product brief), MI210 and MI250 twice their L2.",
    )


def _all(outcomes: Sequence["Outcome"]) -> Table:
    return Table(
        "Every row",
        ("GPU", "row", "measured ms", "wattloop", *PEERS),
        [
            (o.row.gpu, o.row.name, 1e3 * o.row.seconds,
             *(1e3 * o.predicted[who] if who in o.predicted else None
               for who in ("wattloop", *PEERS)))
            for o in outcomes
        ],
    )  # fmt: skip
