"""Scatter of rows with the same calls, which no predictor of the host can beat.

The batch size does not change what the host has to do. Rows of one network that wait for it, under
autocast or without, are therefore repeats of one measurement, apart from the GPU's own work, which
is shorter.
"""

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean, median

from bars import Bar, Table
from predict_errors import Outcome, mean_error

__all__ = ["repeat_bar", "repeat_table"]

WAITING = 0.8
"""The GPU is idle for a fifth of the measured step or more."""


def repeat_bar(outcomes: Sequence[Outcome]) -> Bar | None:
    """Bar of the mean error of each such row by the median of the others, on the same rows."""
    groups = _groups(outcomes)
    if not groups:
        return None
    rows = [o for group in groups.values() for o in group]
    ours = mean_error(rows, "time")
    value = 100 * fmean(_by_the_others(group, o) for group in groups.values() for o in group)
    return Bar(
        "same_calls_mean", value, "%", None, {"kernels": ours},
        note=f"{len(rows)} host-bound rows, each by the median of rows that make the same calls",
    )  # fmt: skip


def repeat_table(outcomes: Sequence[Outcome]) -> Table:
    """Table of the groups of rows."""
    rows: list[list[object]] = [
        [
            network,
            "yes" if autocast else "no",
            ", ".join(f"{1e3 * o.row.step_s:.1f}" for o in group),
            100 * fmean(_by_the_others(group, o) for o in group),
            mean_error(group, "time"),
        ]
        for (network, autocast), group in _groups(outcomes).items()
    ]
    return Table(
        "Host-bound rows that make the same calls",
        ["network", "autocast", "steps, ms", "error by the others, %", "error of kernels, %"],
        rows,
        "Batch sizes differ, which the host does not notice. What these differ by among themselves "
        "is noise of the host, which no predictor knows.",
    )


def _groups(outcomes: Sequence[Outcome]) -> dict[tuple[str, bool], list[Outcome]]:
    found: dict[tuple[str, bool], list[Outcome]] = defaultdict(list)
    for o in outcomes:
        gpu_s = o.judged.prediction.gpu_s or 0.0
        if o.host_bound and gpu_s < WAITING * o.row.step_s:
            found[o.judged.point.group, o.row.precision == "bf16"].append(o)
    return {key: group for key, group in found.items() if len(group) > 1}


def _by_the_others(group: Sequence[Outcome], one: Outcome) -> float:
    others = median(o.row.step_s for o in group if o is not one)
    return abs(others / one.row.step_s - 1)
