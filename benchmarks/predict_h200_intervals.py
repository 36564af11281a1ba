"""Coverage and width of stated intervals, and the least possible width."""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple

from bars import Table
from predict_errors import QUANTITIES, Outcome, mean_error
from predict_fits import Judged
from wattloop.predict.intervals import CONFIDENCE, CalibrationRange, HostSpread, Intervals
from wattloop.predict.prediction import Interval, Prediction

__all__ = ["Coverage", "Covered", "coverages", "hindsight_table", "nested", "origin_table"]


class Covered(NamedTuple):
    """Share of rows inside (%), median width (%), mean error (%)."""

    share: float
    width: float
    error: float

    @property
    def ratio(self) -> float:
        """Return the median width over the mean error."""
        return self.width / self.error


Coverage = Mapping[str, Covered]
"""Quantity -> how its intervals did."""


def nested(judged: Sequence[Judged], also: Sequence[Judged]) -> dict[str, Intervals]:
    """Return group -> intervals from the residuals of all other groups, and their range."""
    found = {}
    for group in dict.fromkeys(j.point.group for j in judged):
        others = [j for j in (*judged, *also) if j.point.group != group]
        scope = CalibrationRange.of("h200", [j.point.workload for j in others])
        found[group] = Intervals.by_traits([j.residual for j in others], scope)
    return found


def coverages(
    outcomes: Sequence[Outcome],
    known: Mapping[str, Intervals],
    confidence: float = CONFIDENCE,
    hosts: HostSpread | None = None,
) -> Coverage:
    """Return coverage of the intervals of each step; `known` ones never saw its model.

    `hosts` are those known before, where the step's own host is not told.
    """
    inside: dict[str, list[bool]] = {q: [] for q in QUANTITIES}
    widths: dict[str, list[float]] = {q: [] for q in QUANTITIES}
    for o in outcomes:
        point = o.judged.point
        found = known[point.group].around(
            o.judged.prediction, point.workload, point.placement, confidence, hosts
        )
        measured = {"time": o.row.step_s, "power": o.row.power_w, "energy": o.row.energy_j}
        for q, value in measured.items():
            interval, centre = _interval(found, q)
            inside[q].append(interval.low <= value <= interval.high)
            widths[q].append((interval.high - interval.low) / centre)
    return {
        q: Covered(
            100 * fmean(inside[q]), 100 * median(widths[q]), mean_error(outcomes, q) or math.nan
        )
        for q in QUANTITIES
    }


def origin_table(
    ours: Sequence[Outcome], suite: Sequence[Outcome], stated: Mapping[str, Intervals]
) -> Table:
    """Table of the sources of coverage and width: the correction for few rows, and the
    residuals.
    """
    twelve, own = ([o.judged for o in rows] for rows in (ours, suite))
    n = len(twelve) + len(own)
    found = {
        "these, as stated": coverages(ours, stated),
        # a conformal quantile is that of n + 1 rows; with this confidence, that of n
        "these, without the correction for few rows": coverages(
            ours, stated, CONFIDENCE * n / (n + 1)
        ),
        "these, from residuals of the twelve alone": coverages(ours, nested(twelve, ())),
        "the suite's, as stated": coverages(suite, nested(own, twelve)),
    }
    rows: list[list[object]] = [
        [name, *(cell for q in QUANTITIES for cell in (c[q].share, c[q].ratio))]
        for name, c in found.items()
    ]
    header = [
        "intervals of",
        *(f"{q} {what}" for q in QUANTITIES for what in ("covered, %", "width over error")),
    ]
    return Table("Coverage and width of the 90% intervals", header, rows, ORIGIN)


def hindsight_table(ours: Sequence[Outcome], stated: Coverage) -> Table:
    """Table of intervals that know afterwards how large the errors of each class were."""
    classes: dict[str, Callable[[Outcome], Hashable]] = {
        "one scale for all rows": lambda o: None,
        "GPU- or host-bound": lambda o: o.host_bound,
        "the same, by family": lambda o: (o.host_bound, o.family),
        "each network": lambda o: o.row.model,
        "each network, GPU- or host-bound": lambda o: (o.row.model, o.host_bound),
    }
    rows: list[list[object]] = [
        [name, len({key(o) for o in ours}), *(_hindsight(ours, key, q) for q in QUANTITIES)]
        for name, key in classes.items()
    ]
    rows.append(["**as stated, beforehand**", "", *(stated[q].ratio for q in QUANTITIES)])
    return Table(
        "How narrow intervals could be: median width over mean error",
        ["scale known for", "scales", *QUANTITIES],
        rows,
        HINDSIGHT,
    )


ORIGIN = """
The correction for few rows (a conformal quantile is that of n + 1 rows) is worth 1% of the width,
and is what makes 90% hold after a small calibration. From residuals of the twelve alone these
intervals would be wider, and would not know that busy H200s of the suite's sittings drew 3 to 4%
less or 5% more than predicted, as the next one may.
""".strip().replace("\n", " ")

HINDSIGHT = """
Scales are the mean errors of the rows themselves, and so is the quantile that makes 90% of them:
no interval that is made beforehand has either. Finer classes need not give less: it counts in which
class the middle row lies. Here it is GPU-bound, and two scales give less than one does, but
which rows are GPU-bound follows from their measured steps. On the suite the middle row is
host-bound.
""".strip().replace("\n", " ")


def _hindsight(
    outcomes: Sequence[Outcome], key: Callable[[Outcome], Hashable], quantity: str
) -> float:
    sizes = [abs(o.judged.residual.value(quantity) or 0.0) for o in outcomes]
    classes: dict[Hashable, list[float]] = defaultdict(list)
    for o, size in zip(outcomes, sizes, strict=True):
        classes[key(o)].append(size)
    scales = [fmean(classes[key(o)]) for o in outcomes]
    scores = sorted(
        size / scale if scale else 0.0 for size, scale in zip(sizes, scales, strict=True)
    )
    score = scores[math.ceil(CONFIDENCE * len(scores)) - 1]
    # from x / f to x f is 2 sinh(log f) wide, in units of x
    width = median(2 * math.sinh(score * scale) for scale in scales)
    return 100 * width / (mean_error(outcomes, quantity) or math.nan)


def _interval(prediction: Prediction, quantity: str) -> tuple[Interval, float]:
    found = {
        "time": (prediction.step_interval, prediction.step_s),
        "power": (prediction.power_interval, prediction.power_w),
        "energy": (prediction.energy_interval, prediction.energy_j),
    }[quantity]
    interval, centre = found
    if interval is None:
        raise ValueError(f"no interval of {quantity}")
    return interval, centre
