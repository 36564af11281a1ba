"""Watts and joules of work from anything whose mean power was measured.

    power = idle + static + sum over kinds of work (joules of one x how much) / time

Solved in logarithms, so that constants stay positive and a 100 W row counts like a 700 W one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wattloop.predict.models.kernels.least_squares import minimise
from wattloop.predict.models.kernels.step import voltage_of
from wattloop.predict.models.kernels.table import Floats
from wattloop.predict.models.kernels.values import Values
from wattloop.predict.models.kernels.work import MEMORY, WORK

__all__ = ["Draw", "with_power"]

PRIOR = 0.5
"""Standard deviation, in logarithms, of a constant around what it was."""
SOFT = 0.05
AT_CAP = 0.96
"""Above this share of the cap, more may have been asked for than was drawn."""


@dataclass(frozen=True, slots=True)
class Draw:
    """Mean power over a time in which some work was done.

    Attributes:
        work: how much of each kind (`work.WORK`).
        seconds: in how long a time.
        power_w: mean power.
        clock_share: clock over the highest.
        cap_w: power limit.
    """

    work: Mapping[str, float]
    seconds: float
    power_w: float
    clock_share: float
    cap_w: float


def with_power(values: Values, draws: Sequence[Draw]) -> Values:
    """`values` with static power and joules of work fitted to `draws`."""
    if not draws:
        return values
    work = np.array([[draw.work.get(name, 0.0) for name in WORK] for draw in draws])
    share = np.array([draw.clock_share for draw in draws])
    slows = np.array([name != MEMORY for name in WORK])
    slowed = voltage_of(values).squared(share)[:, None]
    work = work * np.where(slows[None, :], slowed, 1.0)
    seconds = np.array([draw.seconds for draw in draws])
    measured_w = np.array([draw.power_w for draw in draws])
    cap_w = np.array([draw.cap_w for draw in draws])
    used = (work > 0).any(axis=0)
    names = ["power.static_w"] + [
        f"power.{name}" for name, use in zip(WORK, used, strict=True) if use
    ]
    rates = work[:, used] / seconds[:, None]
    start = np.log([values.look(name) for name in names])

    def residuals(x: Floats) -> Floats:
        watts = np.exp(x)
        power_w = values["power.idle_w"] + watts[0] + rates @ watts[1:]
        # A cap hides how much more was asked for: there only too little is an error.
        hidden = (measured_w > AT_CAP * cap_w) & (power_w > measured_w)
        off = np.log(power_w / measured_w)
        return np.asarray(np.where(hidden, 0.1 * off, off), dtype=np.float64)

    found = minimise(residuals, start, np.full(len(start), PRIOR), soft=SOFT)
    return values.with_changes(
        {name: float(x) for name, x in zip(names, np.exp(found), strict=True)}
    )
