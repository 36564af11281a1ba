"""Time and power under every power cap, predicted from the uncapped point and the GPU's figures.

    python benchmarks/predict_caps.py [--quick] [--json FILE]

Reads `zeus_nsdi23/power_*.csv` of the folder that WATTLOOP_SHARED_DATA names. Each GPU is judged
with constants found on the others only; `--quick` takes the shipped ones.
"""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bars import Bar, Page, Table, arguments, publish
from wattloop.characterize.cap_table import MeasuredCurve, read_curves
from wattloop.hardware.gpus import Gpu, gpu_named
from wattloop.predict.cap_curve import SHIPPED, CurveConstants, cap_curve
from wattloop.predict.capped import VoltageCurve
from wattloop.predict.static_power import static_power

ROOT = Path(__file__).resolve().parent.parent
Array = npt.NDArray[np.float64]

GPUS = {"v100": "v100-pcie-16", "p100": "p100-pcie"}
"""The traces' names of cards that exist in several forms: their caps are those of the PCIe ones."""
GRID = {
    "floor": (0.55, 0.6, 0.65, 0.7, 0.75),
    "knee": (0.4, 0.5, 0.6, 0.7),
    "duty": (0.5, 0.7, 0.9),
}
CLOCK_SHARES = (0.3, 0.4, 0.5, 0.6, 0.8, 1.0)

TEXT = """
Every row of the Zeus traces (NSDI 2023) at a cap below the highest: {rows} rows of {curves} curves
(workload, batch size, optimizer) on {gpus}. Time and mean power at the highest cap are given; time
and power at all other caps are predicted by `predict.cap_curve` from them, the factory limit and
the static power of the GPU's table. Nothing of the judged GPU is fitted: voltage floor and knee and
the part of low power that is waiting come from a grid on the other GPU ({grid} round values,
smallest sum of both errors). The form, and the constants that are not on the grid (the half of the
time that follows the clock, spread of phases, memory's part of energy, hidden waiting) were set
while looking at both tables; the last table shows what the first of them does.

Errors are |predicted / measured - 1|, mean over rows. A quarter of the rows cannot be predicted
better than their noise: workloads that barely use the GPU vary by 5% in time from run to run.

Beside it: `no effect` (time and power stay); `time ~ 1/power` (power is the smaller of the cap and
the uncapped power, time grows as power falls); `linear` (the same power, time grows by as many per
cent of the uncapped time as power falls).
"""


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


def main() -> int:
    args = arguments(__doc__ or "").parse_args()
    folder = Path(os.environ.get("WATTLOOP_SHARED_DATA") or ROOT.parent / "shared" / "data")
    files = sorted((folder / "zeus_nsdi23").glob("power_*.csv"))
    if not files:
        print(
            f"{folder / 'zeus_nsdi23'} has no power_*.csv; name the folder that holds zeus_nsdi23 "
            "with WATTLOOP_SHARED_DATA",
            file=sys.stderr,
        )
        return 2
    names = [path.stem.removeprefix("power_") for path in files]
    tables = {name: read_curves(path) for name, path in zip(names, files, strict=True)}
    gpus = {name: gpu_named(GPUS.get(name, name)) for name in tables}
    constants = dict.fromkeys(tables, SHIPPED)
    if not args.quick and len(tables) > 1:
        constants = {name: fitted(tables, gpus, without=name) for name in tables}
    shares = () if args.quick or len(tables) < 2 else CLOCK_SHARES
    publish(page(tables, gpus, constants, shares), args)
    return 0


def fitted(
    tables: Tables, gpus: Gpus, without: str, start: CurveConstants = SHIPPED
) -> CurveConstants:
    """The constants of the grid that suit all GPUs but one."""
    best, least = start, np.inf
    for floor, knee, duty in product(*GRID.values()):
        tried = start._replace(voltage=VoltageCurve(floor, knee), duty=duty)
        errors = [
            judged(curves, gpus[name], ours(tried))
            for name, curves in tables.items()
            if name != without
        ]
        error = sum(percent([e], "time") + percent([e], "power") for e in errors)
        if error < least:
            best, least = tried, error
    return best


def page(tables: Tables, gpus: Gpus, constants: Constants, shares: Sequence[float]) -> Page:
    """Bars over all GPUs, and where the errors are."""
    found = {name: judged(tables[name], gpus[name], ours(constants[name])) for name in tables}
    rivals = {
        title: {name: judged(tables[name], gpus[name], rival) for name in tables}
        for title, rival in RIVALS.items()
    }
    shipped = {name: judged(tables[name], gpus[name], ours(SHIPPED)) for name in tables}
    bars = []
    for what, limit in (("time", 8.0), ("power", 8.0)):
        bars.append(
            Bar(
                f"{what}_error",
                percent(found.values(), what),
                "%",
                limit,
                {title: percent(each.values(), what) for title, each in rivals.items()},
            )
        )
        for name in tables:
            bars.append(
                Bar(
                    f"{what}_error_{name}",
                    percent([found[name]], what),
                    "%",
                    None,
                    {
                        **{title: percent([each[name]], what) for title, each in rivals.items()},
                        "shipped constants": percent([shipped[name]], what),
                    },
                )
            )
    curves = [curve for each in tables.values() for curve in each]
    return Page(
        "predict_caps",
        "Cap curves predicted from the uncapped point",
        bars,
        [
            by_cap(found),
            by_network(tables, gpus, constants),
            above_cap(found),
            constants_table(constants, gpus),
            *([share_table(tables, gpus, shares)] if shares else []),
        ],
        TEXT.format(
            rows=sum(len(curve.caps_w) - 1 for curve in curves),
            curves=len(curves),
            gpus=" and ".join(gpus[name].product for name in tables),
            grid=np.prod([len(values) for values in GRID.values()]),
        ),
        packages=("wattloop", "numpy"),
    )


def ours(constants: CurveConstants) -> Predict:
    """Our curves as a function of measured ones, whose last point alone is looked at."""

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
    """Time and power at the highest cap, and the caps."""
    points = np.array([(curve.time_s[-1], curve.power_w[-1]) for curve in curves])
    return points[:, 0], points[:, 1], np.array(curves[0].caps_w)


def judged(curves: Iterable[MeasuredCurve], gpu: Gpu, predict: Predict) -> Judged:
    """Errors at all caps but the highest, which was given."""
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


def share_table(tables: Tables, gpus: Gpus, shares: Sequence[float]) -> Table:
    rows = []
    for share in shares:
        start = SHIPPED._replace(clock_share=share)
        found = {
            name: judged(curves, gpus[name], ours(fitted(tables, gpus, name, start)))
            for name, curves in tables.items()
        }
        each = [f"{percent([errors], 'time'):.1f}%" for errors in found.values()]
        both = [f"{percent(found.values(), what):.1f}%" for what in ("time", "power")]
        rows.append((f"{100 * share:.0f}%", *both, *each))
    return Table(
        "Other parts of the time that follow the clock",
        ("part", "time error", "power error", *(f"time error {name}" for name in tables)),
        rows,
        "The grid is searched again for each. Caps that leave more than half of the clock (all of "
        "the V100's) hardly tell this part from a lower voltage, so it is set to half, not fitted.",
    )


if __name__ == "__main__":
    sys.exit(main())
