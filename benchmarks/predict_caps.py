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
    "clock_share": (0.4, 0.5, 0.6, 0.7, 0.8, 1.0),
    "duty": (0.5, 0.7, 0.9),
}

TEXT = """
Every row of the Zeus traces (NSDI 2023) at a cap below the highest: {rows} rows of {curves} curves
(workload, batch size, optimizer) on {gpus}. Time and mean power at the highest cap are given; time
and power at all other caps are predicted by `predict.cap_curve` from them, the factory limit and
the static power of the GPU's table. Nothing of the judged GPU is fitted: voltage floor and knee,
the part of the time that follows the clock and the part of low power that is waiting come from a
grid on the other GPU ({grid} round values, smallest sum of both errors). The form and the constants
that are not on the grid (spread of phases, memory's part of energy, hidden waiting) were set while
looking at both tables.

Errors are |predicted / measured - 1|, mean over rows. A quarter of the rows cannot be predicted
better than their noise: workloads that barely use the GPU vary by 5% in time from run to run.

Beside it: `no effect` (time and power stay); `time ~ 1/power` (power is the smaller of the cap and
the uncapped power, time grows as power falls); `linear` (the same power, time grows by as many per
cent of the uncapped time as power falls).
"""


class Judged(NamedTuple):
    """Relative errors of time and power, one entry per row."""

    time: Array
    power: Array


Predict = Callable[[MeasuredCurve, Gpu], tuple[Array, Array]]


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
    publish(page(tables, gpus, constants), args)
    return 0


def fitted(
    tables: Mapping[str, Sequence[MeasuredCurve]], gpus: Mapping[str, Gpu], without: str
) -> CurveConstants:
    """The constants of the grid that suit all GPUs but one."""
    best, least = SHIPPED, np.inf
    for floor, knee, clock_share, duty in product(*GRID.values()):
        tried = SHIPPED._replace(
            voltage=VoltageCurve(floor, knee), clock_share=clock_share, duty=duty
        )
        errors = [
            judged(curves, gpus[name], ours(tried))
            for name, curves in tables.items()
            if name != without
        ]
        error = sum(float(e.time.mean() + e.power.mean()) for e in errors)
        if error < least:
            best, least = tried, error
    return best


def page(
    tables: Mapping[str, Sequence[MeasuredCurve]],
    gpus: Mapping[str, Gpu],
    constants: Mapping[str, CurveConstants],
) -> Page:
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
            by_cap(tables, gpus, constants),
            by_network(tables, gpus, constants),
            above_cap(tables, gpus, constants),
            constants_table(constants, gpus),
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
    """Our curve as a function of a measured one, whose last point alone is looked at."""

    def predict(curve: MeasuredCurve, gpu: Gpu) -> tuple[Array, Array]:
        found = cap_curve(
            curve.time_s[-1],
            curve.power_w[-1],
            curve.caps_w,
            gpu,
            at_cap_w=curve.caps_w[-1],
            constants=constants,
        )
        return found.step_s[0], found.power_w[0]

    return predict


def no_effect(curve: MeasuredCurve, gpu: Gpu) -> tuple[Array, Array]:
    ones = np.ones(len(curve.caps_w))
    return ones * curve.time_s[-1], ones * curve.power_w[-1]


def inverse_power(curve: MeasuredCurve, gpu: Gpu) -> tuple[Array, Array]:
    power_w = np.minimum(curve.caps_w, curve.power_w[-1])
    return curve.time_s[-1] * curve.power_w[-1] / power_w, power_w


def linear(curve: MeasuredCurve, gpu: Gpu) -> tuple[Array, Array]:
    power_w = np.minimum(curve.caps_w, curve.power_w[-1])
    return curve.time_s[-1] * (2 - power_w / curve.power_w[-1]), power_w


RIVALS: dict[str, Predict] = {
    "no effect": no_effect,
    "time ~ 1/power": inverse_power,
    "linear": linear,
}


def judged(curves: Iterable[MeasuredCurve], gpu: Gpu, predict: Predict) -> Judged:
    """Errors at all caps but the highest, which was given."""
    time, power = [], []
    for curve in curves:
        time_s, power_w = predict(curve, gpu)
        time.append(np.abs(time_s / np.array(curve.time_s) - 1)[:-1])
        power.append(np.abs(power_w / np.array(curve.power_w) - 1)[:-1])
    return Judged(np.concatenate(time), np.concatenate(power))


def percent(errors: Iterable[Judged], what: str) -> float:
    return 100 * float(np.concatenate([getattr(e, what) for e in errors]).mean())


def by_cap(
    tables: Mapping[str, Sequence[MeasuredCurve]],
    gpus: Mapping[str, Gpu],
    constants: Mapping[str, CurveConstants],
) -> Table:
    rows = []
    for name, curves in tables.items():
        at: dict[float, list[tuple[float, float, float]]] = {}
        for curve in curves:
            time_s, power_w = ours(constants[name])(curve, gpus[name])
            for i, cap_w in enumerate(curve.caps_w[:-1]):
                off = time_s[i] / curve.time_s[i] - 1
                at.setdefault(cap_w, []).append(
                    (abs(off), off, abs(power_w[i] / curve.power_w[i] - 1))
                )
        for cap_w, off in sorted(at.items()):
            mean = 100 * np.mean(off, axis=0)
            row = (f"{mean[0]:.1f}%", f"{mean[1]:+.1f}%", f"{mean[2]:.1f}%")
            rows.append((name, f"{cap_w:.0f} W", len(off), *row))
    return Table(
        "By cap",
        ("GPU", "cap", "curves", "time error", "time bias", "power error"),
        rows,
        "Bias is signed: below zero, the slowdown was underestimated.",
    )


def by_network(
    tables: Mapping[str, Sequence[MeasuredCurve]],
    gpus: Mapping[str, Gpu],
    constants: Mapping[str, CurveConstants],
) -> Table:
    rows = []
    for name, curves in tables.items():
        for network in dict.fromkeys(curve.key[1] for curve in curves):
            some = [curve for curve in curves if curve.key[1] == network]
            error = judged(some, gpus[name], ours(constants[name]))
            plain = judged(some, gpus[name], no_effect)
            rows.append(
                (
                    name,
                    network,
                    len(some),
                    f"{100 * error.time.mean():.1f}%",
                    f"{100 * plain.time.mean():.1f}%",
                    f"{100 * error.power.mean():.1f}%",
                    f"{100 * plain.power.mean():.1f}%",
                )
            )
    header = ("GPU", "workload", "curves", "time error", "no effect", "power error", "no effect")
    return Table("By workload", header, rows)


def above_cap(
    tables: Mapping[str, Sequence[MeasuredCurve]],
    gpus: Mapping[str, Gpu],
    constants: Mapping[str, CurveConstants],
) -> Table:
    rows = []
    for name, curves in tables.items():
        over, most, error, total = 0, 0.0, [], 0
        for curve in curves:
            _, power_w = ours(constants[name])(curve, gpus[name])
            for i, cap_w in enumerate(curve.caps_w[:-1]):
                total += 1
                if curve.power_w[i] > 1.005 * cap_w:
                    over += 1
                    most = max(most, curve.power_w[i] / cap_w - 1)
                    error.append(abs(power_w[i] / curve.power_w[i] - 1))
        shown = f"{100 * np.mean(error):.1f}%" if error else "-"
        rows.append((name, total, over, f"{100 * most:.0f}%", shown))
    return Table(
        "Measured power above the cap",
        ("GPU", "rows", "above by over 0.5%", "most", "power error there"),
        rows,
        "At its lowest caps the A40 has reached its lowest clock and draws what it draws.",
    )


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


if __name__ == "__main__":
    sys.exit(main())
