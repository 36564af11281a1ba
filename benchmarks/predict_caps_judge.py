"""Cap curves judged on measured ones: ours and simpler rules, and their errors by part."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bars import Table
from wattloop.cap.evaluation import MeasuredCurve
from wattloop.hardware.gpus import Gpu
from wattloop.predict.cap_curve import SHIPPED, CurveConstants, cap_curve, static_power

Array = npt.NDArray[np.float64]


class Judged(NamedTuple):
    """Signed relative errors of time and power, cap, measured power over cap; one entry a row."""

    time: Array
    power: Array
    cap_w: Array
    over_cap: Array


Curves = Sequence[MeasuredCurve]
"""With the same caps."""
Predict = Callable[[Curves, Gpu], tuple[Array, Array]]
Tables = Mapping[str, Curves]
Gpus = Mapping[str, Gpu]
Constants = Mapping[str, CurveConstants]


def ours(constants: CurveConstants) -> Predict:
    """Return Wattloop's curves as a function of measured ones, from the last point alone."""

    def predict(curves: Curves, gpu: Gpu) -> tuple[Array, Array]:
        time_s, power_w, caps_w = last(curves)
        return cap_curve(
            time_s, power_w, caps_w, gpu, at_cap_w=float(caps_w[-1]), constants=constants
        )

    return predict


def no_effect(curves: Curves, gpu: Gpu) -> tuple[Array, Array]:
    time_s, power_w, caps_w = last(curves)
    return np.outer(time_s, np.ones_like(caps_w)), np.outer(power_w, np.ones_like(caps_w))


def inverse_power(curves: Curves, gpu: Gpu) -> tuple[Array, Array]:
    time_s, power_w, caps_w = last(curves)
    capped_w = np.minimum(caps_w, power_w[:, None])
    return (time_s * power_w)[:, None] / capped_w, capped_w


def linear(curves: Curves, gpu: Gpu) -> tuple[Array, Array]:
    time_s, power_w, caps_w = last(curves)
    capped_w = np.minimum(caps_w, power_w[:, None])
    return time_s[:, None] * (2 - capped_w / power_w[:, None]), capped_w


RIVALS: dict[str, Predict] = {
    "no effect": no_effect,
    "time ~ 1/power": inverse_power,
    "linear": linear,
}


def last(curves: Curves) -> tuple[Array, Array, Array]:
    """Return time and power at the highest cap, and the caps."""
    points = np.array([(curve.time_s[-1], curve.power_w[-1]) for curve in curves])
    return points[:, 0], points[:, 1], np.array(curves[0].caps_w)


def judged(curves: Iterable[MeasuredCurve], gpu: Gpu, predict: Predict) -> Judged:
    """Return the errors at all caps but the highest, which was given."""
    time, power, caps, over = [], [], [], []
    alike: dict[tuple[float, ...], list[MeasuredCurve]] = {}
    for curve in curves:
        alike.setdefault(curve.caps_w, []).append(curve)
    for some in alike.values():
        time_s, power_w = predict(some, gpu)
        measured_w = np.array([curve.power_w for curve in some])
        time.append((time_s / np.array([curve.time_s for curve in some]) - 1)[:, :-1].ravel())
        power.append((power_w / measured_w - 1)[:, :-1].ravel())
        caps.append(np.tile(some[0].caps_w[:-1], len(some)))
        over.append((measured_w / some[0].caps_w)[:, :-1].ravel())
    return Judged(*(np.concatenate(each) for each in (time, power, caps, over)))


def percent(errors: Iterable[Judged], what: str) -> float:
    return 100 * float(np.abs(np.concatenate([getattr(e, what) for e in errors])).mean())


def by_cap(found: Mapping[str, Judged]) -> Table:
    rows = []
    for name, errors in found.items():
        for cap_w in np.unique(errors.cap_w):
            time, power = (each[errors.cap_w == cap_w] for each in (errors.time, errors.power))
            shown = (mean_of(np.abs(time)), f"{100 * time.mean():+.1f}%", mean_of(np.abs(power)))
            rows.append((name, f"{cap_w:.0f} W", len(time), *shown))
    return Table(
        "By cap",
        ("GPU", "cap", "curves", "time error", "time bias", "power error"),
        rows,
        "Bias is signed: below zero, the slowdown was underestimated.",
    )


def by_network(tables: Tables, gpus: Gpus, constants: Constants) -> Table:
    rows = []
    for name, curves in tables.items():
        for network in dict.fromkeys(curve.key[1] for curve in curves):
            some = [curve for curve in curves if curve.key[1] == network]
            error = judged(some, gpus[name], ours(constants[name]))
            plain = judged(some, gpus[name], no_effect)
            shown = (error.time, plain.time, error.power, plain.power)
            rows.append((name, network, len(some), *(mean_of(np.abs(each)) for each in shown)))
    header = ("GPU", "workload", "curves", "time error", "no effect", "power error", "no effect")
    return Table("By workload", header, rows)


def above_cap(found: Mapping[str, Judged]) -> Table:
    rows = []
    for name, errors in found.items():
        over = errors.over_cap > 1.005
        most = f"{100 * (errors.over_cap[over].max() - 1):.0f}%" if over.any() else "-"
        shown = [mean_of(np.abs(each[over])) for each in (errors.time, errors.power)]
        rows.append((name, len(over), int(over.sum()), most, *shown))
    return Table(
        "Measured power above the cap",
        ("GPU", "rows", "above by over 0.5%", "most", "time error there", "power error there"),
        rows,
        "At its lowest caps a card has reached its lowest clock and draws what it draws.",
    )


def mean_of(errors: Array) -> str:
    return f"{100 * errors.mean():.1f}%" if len(errors) else "-"


def constants_table(constants: Mapping[str, CurveConstants], gpus: Mapping[str, Gpu]) -> Table:
    rows = [
        (
            name,
            each.voltage.floor,
            each.voltage.knee,
            each.clock_share,
            each.duty,
            f"{static_power(gpus[name]).watts:g} W" if name in gpus else "-",
        )
        for name, each in {**constants, "shipped": SHIPPED}.items()
    ]
    return Table(
        "Constants each GPU was judged with",
        ("judged", "voltage floor", "knee", "follows the clock", "duty", "static power (table)"),
        rows,
    )


def static_table(tables: Tables, gpus: Gpus, constants: Constants) -> Table:
    """Table of the effect of a static power that differs from the table of GPUs."""
    rows = []
    for name, curves in tables.items():
        gpu = gpus[name]
        known_w = static_power(gpu).watts
        assumed_w = static_power(replace(gpu, idle_w=None)).watts
        tried = {
            "table": known_w,
            "20% less": 0.8 * known_w,
            "20% more": 1.2 * known_w,
            "assumed share": assumed_w,
        }
        for title, watts in tried.items():
            found = judged(curves, replace(gpu, idle_w=watts), ours(constants[name]))
            errors = [f"{percent([found], what):.1f}%" for what in ("time", "power")]
            rows.append((name, title, f"{watts:.0f} W", *errors))
    return Table(
        "Other static powers",
        ("GPU", "static power", "watts", "time error", "power error"),
        rows,
        "Published idle powers of the A40 differ (71 W cool, about 110 W warm); the table of GPUs "
        "takes their middle. `assumed share` is what a GPU gets of which nothing is published.",
    )
