"""Steps of 29 further networks, which no constants have seen, on hosts that were unsteady.

`unsteady_steps.jsonl.gz` has them from two sittings, most steps in both: one sitting as a
prediction of the other shows the accuracy of a measurement.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

from bars import Bar, Table
from predict_errors import QUANTITIES, Outcome, bias, mean_error, median_error
from predict_fits import Judged, at_host_speed
from predict_points import OWN_DATA, Measured, own_points, same_sittings
from wattloop.predict.models.kernels import KernelModel
from wattloop.predict.models.model import MeasuredStep, Model

__all__ = ["UNSTEADY", "Unsteady", "judge_unsteady", "unsteady_bars", "unsteady_table"]

UNSTEADY = OWN_DATA / "unsteady_steps.jsonl.gz"
WAITING = 0.8
"""The GPU is idle for a fifth of the measured step or more."""


@dataclass(frozen=True)
class Unsteady:
    """Predictions of the first sitting, and the second sitting as a prediction of it.

    Attributes:
        told: with one speed of the host, found from the other networks.
        dispatch: with the host's own time of each step, measured right after it.
        again: step -> (first, second) of time, power and energy, and whether the GPU waits.
    """

    told: list[Outcome]
    dispatch: list[Outcome]
    again: dict[str, tuple[Mapping[str, tuple[float, float]], bool]]


def judge_unsteady(model: Model, known: Sequence[MeasuredStep], path: Path) -> Unsteady | None:
    """Predict by all constants, none of which saw these networks."""
    if not isinstance(model, KernelModel) or not path.is_file():
        return None
    fitted = model.fit(known)
    seen = {point.group for point in known}
    first, second = same_sittings(own_points([path], by_machine=True))
    fresh = [m for m in first if m.point.group not in seen]
    told, dispatch = [], []
    for each in fresh:
        others = [m.point for m in first if m.point.group != each.point.group]
        speed = at_host_speed(fitted, others)[0].placement.host_speed
        told.append(_outcome(fitted, each, speed))
        asked_s = fitted.predict(each.point.workload, each.point.placement).host_s or 0.0
        dispatch.append(_outcome(fitted, each, asked_s / sum(each.point.host_s.values())))
    later = {_key(m): m for m in second}
    again = {}
    for outcome, each in zip(told, fresh, strict=True):
        other = later.get(_key(each))
        if other is not None:
            one, two = each.row, other.row
            pairs = {
                "time": (one.step_s, two.step_s),
                "power": (one.power_w, two.power_w),
                "energy": (one.energy_j, two.energy_j),
            }
            gpu_s = outcome.judged.prediction.gpu_s or 0.0
            again[outcome.label] = (pairs, gpu_s < WAITING * each.row.step_s)
    return Unsteady(told, dispatch, again)


def _key(m: Measured) -> tuple[str, int, str]:
    return m.row.model, m.row.batch, m.row.precision


def _outcome(fitted: KernelModel, each: Measured, speed: float) -> Outcome:
    point = replace(each.point, placement=replace(each.point.placement, host_speed=speed))
    found = fitted.predict(point.workload, point.placement)
    return Outcome(each.row, each.family, Judged(point, found), found.host_s or 0.0)


def unsteady_bars(found: Unsteady) -> list[Bar]:
    """Bars of medians, which outliers of the host do not affect, next to the second sitting's."""
    note = f"{len(found.told)} steps; peer: the same step in the other sitting"
    return [
        Bar(
            f"unsteady_{quantity}_median", median_error(found.told, quantity), "%", None,
            {"other sitting": 100 * median(_repeats(found, quantity, None))},
            note=note if quantity == "time" else "",
        )
        for quantity in QUANTITIES
    ]  # fmt: skip


def unsteady_table(found: Unsteady) -> Table:
    """Table of errors with more or less data on the host, and of a second measurement."""
    rows: list[list[object]] = []
    parts = {"all": None, "the GPU waits": True, "the GPU is busy": False}
    waits = {o.label: wait for o, wait in ((o, _waits(o)) for o in found.told)}
    for name, wait in parts.items():
        for title, outcomes in (
            ("kernels, told one speed of the host", found.told),
            ("kernels, told each step's dispatch time", found.dispatch),
        ):
            chosen = [o for o in outcomes if wait is None or waits[o.label] is wait]
            if chosen:
                cells = (
                    f"{mean_error(chosen, q):.1f} / {median_error(chosen, q):.1f} "
                    f"({bias(chosen, q):+.1f})"
                    for q in QUANTITIES
                )
                rows.append([f"{title}: {name}", len(chosen), *cells])
        if repeated := _repeats(found, "time", wait):
            cells = (
                f"{100 * fmean(each):.1f} / {100 * median(each):.1f}"
                for each in (_repeats(found, q, wait) for q in QUANTITIES)
            )
            rows.append([f"the same steps in the other sitting: {name}", len(repeated), *cells])
    return Table(
        "Further networks, on a host that changed its speed from second to second",
        ["mean / median error (bias), %", "n", *QUANTITIES],
        rows,
        TEXT,
    )


def _waits(o: Outcome) -> bool:
    return (o.judged.prediction.gpu_s or 0.0) < WAITING * o.row.step_s


def _repeats(found: Unsteady, quantity: str, wait: bool | None) -> list[float]:
    """Return errors of the second sitting as a prediction of the first."""
    return [
        abs(pairs[quantity][1] / pairs[quantity][0] - 1)
        for pairs, waits in found.again.values()
        if wait is None or waits is wait
    ]


TEXT = """
Of 29 networks that nothing else here has, by constants of all the others. Their host alternated
between two states within seconds: a loop of Python took 340 or 700 us, and the dispatch time of a
step 0.8 to 2.3 times what one speed of the host explains. The same steps were measured again 40
minutes later, on another such machine. Where the GPU waits, that measurement predicts the
first no better than the constants do: no predictor that is told one speed can do better
on such hosts. No constants are fitted to these rows. When they were first predicted, before a
fault was mended that they had shown, time was 21.5 / 12.2% off, power 10.6 / 8.3% and energy
14.8 / 9.3%: recurrent layers under autocast run in fp16, in one kernel for all time steps where
they are narrow (one step was 460% too long).
""".strip().replace("\n", " ")
