"""Gaussian process over the configurations in the race.

Observations are values of one configuration or differences of two. A value for one batch size
informs the estimates of its neighbours, with their uncertainty.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from wattloop.tune.segment import Value
from wattloop.tune.space import Choice, Integer, Real, Space

Array = npt.NDArray[np.float64]
LENGTH = 2.0
"""Length scale in steps (doublings, where a parameter is on a logarithmic scale)."""
OTHER = 2.0
"""Steps between two values without an order."""
WIDE = 4.0
"""Positive values that differ by more than this factor are on a logarithmic scale."""
RANGE = 3.0
"""Steps across the range of a parameter that is on a linear scale."""


@dataclass(frozen=True, slots=True)
class Observation:
    """Value of one configuration, or its difference from another's, with its variance."""

    one: int
    other: int | None
    value: float
    variance: float


@dataclass(frozen=True, slots=True)
class Surrogate:
    """Mean and covariance over all configurations."""

    mean: Array
    covariance: Array

    def value(self, one: int) -> float:
        return float(self.mean[one])

    def deviation(self, one: int) -> float:
        return math.sqrt(max(float(self.covariance[one, one]), 0.0))

    def against(self, one: int, other: int) -> tuple[float, float]:
        c = self.covariance
        variance = float(c[one, one] + c[other, other] - 2 * c[one, other])
        return float(self.mean[one] - self.mean[other]), max(variance, 0.0)


def fit_surrogate(prior: Array, seen: Sequence[Observation], mean: float = 0.0) -> Surrogate:
    size = len(prior)
    if not seen:
        return Surrogate(np.full(size, mean), prior)
    design: npt.NDArray[Any] = np.zeros((len(seen), size))
    values = np.empty(len(seen))
    for row, one in enumerate(seen):
        design[row, one.one] = 1.0
        values[row] = one.value
        if one.other is None:
            values[row] -= mean
        else:
            design[row, one.other] = -1.0
    noise = np.diag([one.variance for one in seen])
    cross = prior @ design.T
    gain = np.linalg.solve(design @ cross + noise, cross.T).T
    return Surrogate(mean + gain @ values, prior - gain @ cross.T)


def covariance(
    space: Space, names: Iterable[str], configurations: Sequence[Mapping[str, Value]], spread: float
) -> Array:
    """Covariance of a smooth function of some parameters with this standard deviation."""
    size = len(configurations)
    squares: Array = np.zeros((size, size))
    for name in names:
        places = [_place(space, name, values.get(name)) for values in configurations]
        for i in range(size):
            for j in range(i):
                squares[i, j] += _steps(places[i], places[j]) ** 2
    squares += squares.T
    smooth: Array = spread**2 * np.exp(-squares / (2 * LENGTH**2))
    return smooth


def expected_saving(mean: float, deviation: float) -> float:
    """Return E[max(0, 1 - exp(x))] for x normal: the share that is saved where x is below 0."""
    if deviation <= 1e-9:
        return max(0.0, -math.expm1(mean))
    below = _normal_below(-mean / deviation)
    shifted = _normal_below(-mean / deviation - deviation)
    return max(below - math.exp(mean + deviation**2 / 2) * shifted, 0.0)


def _normal_below(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def _place(space: Space, name: str, value: Value) -> float | str:
    """Return a number where the parameter has an order, else text."""
    parameter = space.parameters[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return repr(value)
    if isinstance(parameter, Choice):
        if any(isinstance(v, bool) or not isinstance(v, int | float) for v in parameter.values):
            return repr(value)
        numbers = [float(v) for v in parameter.values if isinstance(v, int | float)]
        low, high, log = min(numbers), max(numbers), False
    elif isinstance(parameter, Integer | Real):
        low, high, log = float(parameter.low), float(parameter.high), parameter.log
    else:
        return repr(value)
    if log or (low > 0 and high > WIDE * low):
        return math.log2(value)
    return RANGE * (value - low) / (high - low) if high > low else 0.0


def _steps(one: float | str, other: float | str) -> float:
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other)
    return 0.0 if one == other else OTHER
