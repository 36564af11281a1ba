"""Predictions of the newest collection from earlier constants, intervals, forms and priors.

Its networks that no earlier collection has are the nearest to unseen networks. The model learns one
number about its host: its speed, from steps of its other networks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bars import Bar, Table
from predict_errors import QUANTITIES, Outcome, mean_error, median_error
from predict_fits import Judged, at_host_speed
from predict_h200_intervals import Coverage, coverages
from predict_points import Measured
from wattloop.predict.calibrate.fit import left_out_residuals
from wattloop.predict.intervals import CalibrationRange, HostSpread, Intervals
from wattloop.predict.models.kernels import KernelModel
from wattloop.predict.models.model import MeasuredStep, Model

__all__ = ["Fresh", "fresh_bars", "fresh_table", "judge_fresh", "newest_networks"]

LIMITS = {"time": 11.0, "power": 7.0, "energy": 8.0}
"""Mean errors in percent that are asked for on unseen networks."""


@dataclass(frozen=True)
class Fresh:
    """Every model's predictions of steps that were measured after it was fixed.

    Attributes:
        outcomes: model -> its predictions.
        untold: those of the first model for a host as quick as that of the twelve networks.
        covered: coverage of the first model's intervals.
        untold_covered: their coverage for that other host.
    """

    outcomes: dict[str, list[Outcome]]
    untold: list[Outcome]
    covered: Coverage
    untold_covered: Coverage


def newest_networks(own: Sequence[Measured]) -> list[Measured]:
    """Return steps of the newest sitting's networks that no earlier sitting had."""
    last = max(m.sitting for m in own)
    before = {m.point.group for m in own if m.sitting != last}
    return [m for m in own if m.sitting == last and m.point.group not in before]


def judge_fresh(
    models: Mapping[str, Model], measured: Sequence[Measured], own: Sequence[Measured]
) -> Fresh:
    """Predict by constants of the twelve networks and of all sittings but the newest."""
    last = max(m.sitting for m in own)
    sitting = [m.point for m in own if m.sitting == last]
    fresh = newest_networks(own)
    known = [m.point for m in (*measured, *(m for m in own if m.sitting != last))]
    asked = [m.point for m in fresh]
    first = next(iter(models))
    judged: dict[str, list[Judged]] = {}
    untold: list[Judged] = []
    intervals = hosts_before = None
    for name, model in models.items():
        fitted = model.fit(known)
        points = asked
        if isinstance(model, KernelModel) and isinstance(fitted, KernelModel):
            points = _at_speed_of_others(fitted, asked, sitting)
            if name == first:
                untold = _predicted(fitted, asked)
                speeds = fitted.kernel_constants.made["hosts"].values()
                hosts_before = HostSpread.of(speeds)
                scope = CalibrationRange.of("h200", [point.workload for point in known])
                intervals = Intervals.by_traits(left_out_residuals(model, known), scope)
        judged[name] = _predicted(fitted, points)
    hosts = [j.prediction.host_s or 0.0 for j in judged[first]]
    outcomes = {name: _outcomes(fresh, found, hosts) for name, found in judged.items()}
    without_speed = _outcomes(fresh, untold, hosts) if untold else []
    covered: Coverage = {}
    untold_covered: Coverage = {}
    if intervals is not None:
        stated = dict.fromkeys((point.group for point in asked), intervals)
        covered = coverages(outcomes[first], stated)
        untold_covered = coverages(without_speed, stated, hosts=hosts_before)
    return Fresh(outcomes, without_speed, covered, untold_covered)


def fresh_bars(fresh: Fresh) -> list[Bar]:
    """Bars required on unseen networks, with the baselines."""
    ours, *_ = fresh.outcomes.values()
    others = list(fresh.outcomes.items())[1:]
    note = f"{len(ours)} steps of {len({o.row.model.partition('@')[0] for o in ours})} networks"
    found = [
        Bar(
            f"fresh_{quantity}_mean", mean_error(ours, quantity), "%", limit,
            {name: mean_error(rows, quantity) for name, rows in others},
            note=note if quantity == "time" else "",
        )
        for quantity, limit in LIMITS.items()
    ]  # fmt: skip
    baselines = {name: median_error(rows, "time") for name, rows in others}
    waiting = sum(o.host_bound for o in ours)
    note = f"{waiting} of these steps wait for the host, which differs by 7% from round to round"
    median_bar = Bar(
        "fresh_time_median", median_error(ours, "time"), "%", 7.0, baselines, note=note
    )
    found.insert(1, median_bar)
    return found


def fresh_table(fresh: Fresh) -> Table:
    """Table of errors with and without the host's speed, and the coverage of intervals."""
    first = next(iter(fresh.outcomes))
    rows: list[list[object]] = [
        [name, *(f"{mean_error(o, q):.1f} / {median_error(o, q):.1f}" for q in QUANTITIES)]
        for name, o in fresh.outcomes.items()
    ]
    if fresh.untold:
        cells = (
            f"{mean_error(fresh.untold, q):.1f} / {median_error(fresh.untold, q):.1f}"
            for q in QUANTITIES
        )
        rows.append([f"{first}, not told how quick the host was", *cells])
    if fresh.covered:
        rows.append(
            [
                "stated 90% intervals cover, %",
                *(f"{fresh.covered[q].share:.0f}" for q in QUANTITIES),
            ]
        )
        rows.append(
            [
                "the same, not told how quick the host was",
                *(f"{fresh.untold_covered[q].share:.0f}" for q in QUANTITIES),
            ]
        )
        rows.append(
            [
                "their median width over the mean error, told",
                *(f"{fresh.covered[q].ratio:.2f}" for q in QUANTITIES),
            ]
        )
    return Table(
        "Networks that were measured after everything was settled",
        ["mean / median error, %", *QUANTITIES],
        rows,
        FRESH,
    )


FRESH = """
By constants of the twelve networks and of the collections before, with intervals from their
residuals. Of this collection's host one number is known, its speed, as `wattloop calibrate host`
measures it (here, by steps of its other networks); a prediction for an unmeasured host
has the errors of the row below the models, and an interval that is widened by what is known of the
hosts before.
""".strip().replace("\n", " ")


def _at_speed_of_others(
    fitted: KernelModel, asked: Sequence[MeasuredStep], sitting: Sequence[MeasuredStep]
) -> list[MeasuredStep]:
    """Return each network's points at the host speed found from the sitting's other networks."""
    speeds = {}
    for group in dict.fromkeys(point.group for point in asked):
        others = at_host_speed(fitted, [point for point in sitting if point.group != group])
        speeds[group] = others[0].placement.host_speed
    return [
        replace(point, placement=replace(point.placement, host_speed=speeds[point.group]))
        for point in asked
    ]


def _predicted(fitted: Model, points: Sequence[MeasuredStep]) -> list[Judged]:
    return [Judged(point, fitted.predict(point.workload, point.placement)) for point in points]


def _outcomes(
    fresh: Sequence[Measured], judged: Sequence[Judged], hosts: Sequence[float]
) -> list[Outcome]:
    return [
        Outcome(m.row, m.family, j, host_s)
        for m, j, host_s in zip(fresh, judged, hosts, strict=True)
    ]
