"""The default's learning rate is kept, and what sweeps find is measured against it.

Where a sweep's loss falls fastest is a rate from which a training learns, but seldom the one that
it ends best with, and by how much it is off depends on model and optimizer. A default that names
its rate has been trained with it. So the default is swept for comparison only: a candidate whose
loss falls fastest at half the rate at which the default's does gets half the default's rate. Only
a default's rate that is far from where its own loss falls is not built upon; the default still
keeps it, and the others are given what their sweeps say.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from wattloop.tune.problem import Problem
from wattloop.tune.progress import RateLoss
from wattloop.tune.segment import Value
from wattloop.tune.strategies.race_rates import Picked
from wattloop.tune.strategies.race_runner import Runner

__all__ = ["RateAnchor"]

LEAST_RATES = 8
"""In a sweep that is compared: with fewer, neighbours are too far apart to say by how much."""
MOST_FACTOR = 8.0
"""Sweeps that differ by more are taken to differ by so much: batch sizes seldom need more."""
FAR = 10.0
"""From where its loss falls fastest, either way: the default's rate is doubted."""


@dataclass
class RateAnchor:
    """A default that names its learning rate.

    Attributes:
        default: its candidate.
        rate: the default's own.
        swept: where its loss falls fastest; None before it was swept, or when that says nothing.
    """

    default: Runner
    rate: float
    swept: float | None = None

    @classmethod
    def of(cls, problem: Problem, default: Runner) -> "RateAnchor | None":
        """None where the default names no rate, or no rate is searched."""
        named = None if problem.rate is None else problem.default.get(problem.rate)
        if isinstance(named, bool) or not isinstance(named, int | float) or not named > 0:
            return None
        return cls(default, float(named))

    def compares(self, runner: Runner) -> bool:
        """Whether the default's rate says something of this candidate's.

        It does not where they differ in something that has a name, such as the optimizer.
        """
        return _names(runner.parameters.values()) == _names(self.default.parameters.values())

    def compared(
        self, runner: Runner, losses: Sequence[RateLoss], found: Picked | None
    ) -> float | None:
        """The rate of a candidate after its sweep; None for the default's own."""
        swept = found.rate if found is not None and len(losses) >= LEAST_RATES else None
        if runner is self.default:
            self.swept = swept
            return None
        if swept is None or self.swept is None:
            return None
        if not 1 / FAR <= self.rate / self.swept <= FAR:
            return swept
        return self.rate * min(max(swept / self.swept, 1 / MOST_FACTOR), MOST_FACTOR)


def _names(values: Iterable[Value]) -> list[str]:
    return sorted(value for value in values if isinstance(value, str))
