"""Learning rates of `race`: range of a sweep, choice from its losses, the default as reference."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from wattloop.tune.search_problem import Problem
from wattloop.tune.segment import RateLoss, RateSweep, Value
from wattloop.tune.space import Choice, Integer, Parameter, Real
from wattloop.tune.strategies.race.runner import Runner

COUNT = 13
STEPS = 10
"""Optimizer steps at each rate: with fewer, unstable rates look stable."""
MOST_DATA = 0.5
"""Largest share of an epoch: at large batches so many steps would be several epochs."""
BLOWN = 1.5
"""A loss this many times the least so far marks a rate that is too high, with all above."""
RANGES = {"sgd": (1e-3, 1.0), "adam": (1e-5, 1e-1)}
FINE_TUNING = (1e-7, 1e-3)
FINE = 1e-4
"""A default below this, with an optimizer of the Adam family, indicates fine-tuning."""


@dataclass(frozen=True, slots=True)
class PickedRate:
    """Chosen rate; `edge` is -1 or 1 where it is at the low or high end of the sweep."""

    rate: float
    edge: int


def first_sweep(parameters: Mapping[str, Value], name: str, parameter: Parameter) -> RateSweep:
    """Return the range that suits the optimizer, within the parameter's range."""
    rate = parameters.get(name)
    texts = " ".join(str(value).lower() for value in parameters.values() if isinstance(value, str))
    low, high = RANGES["sgd" if "sgd" in texts or "momentum" in texts else "adam"]
    if "adam" not in texts and "sgd" not in texts and isinstance(rate, int | float):
        low, high = rate / 30, rate * 30  # another optimizer: around the usual one
    elif "adam" in texts and isinstance(rate, int | float) and 0 < rate < FINE:
        low, high = FINE_TUNING
    least, most = _bounds(parameter)
    if max(low, least) < min(high, most):
        low, high = max(low, least), min(high, most)
    elif least > 0 and math.isfinite(most) and least < most:
        low, high = least, most
    return RateSweep(low=low, high=high, count=COUNT, steps_each=STEPS, data_share=MOST_DATA)


def pick_rate(losses: Sequence[RateLoss]) -> PickedRate | None:
    """Return the rate at which the loss falls fastest, before it grows; None when unknown."""
    ordered = sorted(losses, key=lambda one: one.rate)
    stable: list[RateLoss] = []
    for one in ordered:
        least = min((s.loss for s in stable), default=math.inf)
        if not math.isfinite(one.loss) or (stable and one.loss > BLOWN * abs(least)):
            break
        stable.append(one)
    if len(stable) < 3:
        return PickedRate(stable[-1].rate, -1) if stable else None
    falls = [a.loss - b.loss for a, b in itertools.pairwise(stable)]
    padded = [0.0, *falls, 0.0]
    smooth = [(a + 2 * b + c) / 4 for a, b, c in zip(padded[:-2], falls, padded[2:], strict=True)]
    best = max(range(len(smooth)), key=smooth.__getitem__)
    if smooth[best] <= 0:
        return None
    if best <= 1:
        return PickedRate(stable[best + 1].rate, -1)
    whole = len(stable) == len(ordered)
    return PickedRate(stable[best + 1].rate, 1 if whole and best >= len(smooth) - 2 else 0)


def widen_sweep(sweep: RateSweep, edge: int, parameter: Parameter) -> RateSweep | None:
    """Extend the sweep by a decade on that side; None where the parameter ends there."""
    least, most = _bounds(parameter)
    if edge < 0:
        low, high = max(sweep.low / 10, least), sweep.low * 3
    else:
        low, high = sweep.high / 3, min(sweep.high * 10, most)
    if (edge < 0 and low >= sweep.low) or (edge > 0 and high <= sweep.high):
        return None
    return replace(sweep, low=low, high=high)


def nearest_rate(rate: float, parameter: Parameter) -> float:
    if isinstance(parameter, Choice):
        listed = [float(v) for v in parameter.values if isinstance(v, int | float) and v > 0]
        return min(listed, key=lambda v: abs(math.log(v / rate)), default=rate)
    least, most = _bounds(parameter)
    return min(max(rate, least), most)


def _bounds(parameter: Parameter) -> tuple[float, float]:
    if isinstance(parameter, Real | Integer):
        return float(parameter.low), float(parameter.high)
    if isinstance(parameter, Choice):
        listed = [float(v) for v in parameter.values if isinstance(v, int | float)]
        if len(listed) > 1:
            return min(listed), max(listed)
    return 0.0, math.inf


# The default keeps its learning rate, and sweeps are measured against it. The rate at which a
# sweep's loss falls fastest is seldom the best for a whole training, and the ratio depends on model
# and optimizer. A default with a stated rate has proven it. So the default is swept for comparison
# only: a candidate whose loss falls fastest at half the rate of the default's gets half the
# default's rate. If the default's rate is far from where its own loss falls, the candidates use
# their own sweeps. Without candidates to compare, the default is not swept.

LEAST_RATES = 8
"""Rates in a compared sweep: with fewer, the resolution is too coarse."""
MOST_FACTOR = 8.0
"""Largest ratio between two sweeps: batch sizes seldom need more."""
FAR = 10.0
"""Factor from the fastest fall of the loss beyond which the default's rate is not used."""


@dataclass
class RateAnchor:
    """Default with a stated learning rate."""

    default: Runner
    rate: float

    @classmethod
    def of(cls, problem: Problem, default: Runner) -> "RateAnchor | None":
        """Build it; None where the default states no rate, or no rate is searched."""
        named = None if problem.rate is None else problem.default.get(problem.rate)
        if isinstance(named, bool) or not isinstance(named, int | float) or not named > 0:
            return None
        return cls(default, float(named))

    def compares(self, runner: Runner) -> bool:
        """Return whether the default's rate is a reference for this candidate.

        It does not where they differ in something that has a name, such as the optimizer, nor
        where the default's is far from where its own loss falls.
        """
        if runner is self.default:
            return True
        same = _names(runner.parameters) == _names(self.default.parameters)
        swept = self.default.swept
        return same and (swept is None or 1 / FAR <= self.rate / swept <= FAR)

    def compared(
        self, runner: Runner, losses: Sequence[RateLoss], found: PickedRate | None
    ) -> float | None:
        """Return the rate of a candidate after its sweep; None for the default's own."""
        runner.swept = found.rate if found is not None and len(losses) >= LEAST_RATES else None
        own, swept = runner.swept, self.default.swept
        if runner is self.default or own is None or swept is None:
            return None
        return self.rate * min(max(own / swept, 1 / MOST_FACTOR), MOST_FACTOR)


def _names(parameters: Mapping[str, Value]) -> dict[str, str]:
    return {name: value for name, value in parameters.items() if isinstance(value, str)}
