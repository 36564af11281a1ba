"""The default's learning rate is kept, and what sweeps find is measured against it.

Where a sweep's loss falls fastest is a rate from which a training learns, but seldom the one that
it ends best with, and by how much it is off depends on model and optimizer. A default that names
its rate has been trained with it. So the default is swept for comparison only: a candidate whose
loss falls fastest at half the rate at which the default's does gets half the default's rate. Only
a default's rate that is far from where its own loss falls is not built upon; the default still
keeps it, and the others are given what their sweeps say. Where nobody is to be compared with it,
the default is not swept.
"""

from collections.abc import Mapping, Sequence
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
    """

    default: Runner
    rate: float

    @classmethod
    def of(cls, problem: Problem, default: Runner) -> "RateAnchor | None":
        """None where the default names no rate, or no rate is searched."""
        named = None if problem.rate is None else problem.default.get(problem.rate)
        if isinstance(named, bool) or not isinstance(named, int | float) or not named > 0:
            return None
        return cls(default, float(named))

    def compares(self, runner: Runner) -> bool:
        """Whether the default's rate says something of this candidate's.

        It does not where they differ in something that has a name, such as the optimizer, nor
        where the default's is far from where its own loss falls.
        """
        if runner is self.default:
            return True
        same = _names(runner.parameters) == _names(self.default.parameters)
        swept = self.default.swept
        return same and (swept is None or 1 / FAR <= self.rate / swept <= FAR)

    def compared(
        self, runner: Runner, losses: Sequence[RateLoss], found: Picked | None
    ) -> float | None:
        """The rate of a candidate after its sweep; None for the default's own."""
        runner.swept = found.rate if found is not None and len(losses) >= LEAST_RATES else None
        own, swept = runner.swept, self.default.swept
        if runner is self.default or own is None or swept is None:
            return None
        return self.rate * min(max(own / swept, 1 / MOST_FACTOR), MOST_FACTOR)


def _names(parameters: Mapping[str, Value]) -> dict[str, str]:
    return {name: value for name, value in parameters.items() if isinstance(value, str)}
