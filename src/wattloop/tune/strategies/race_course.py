"""How far a training is on its way to the target, and how well that tells the epochs it needs."""

import math

from wattloop.tune.problem import Problem
from wattloop.tune.strategies.race_runner import Runner

__all__ = ["Course"]

SEED_ERROR = 0.1
"""Two trainings of one configuration differ by this much in the epochs they need (relative)."""
EPOCH_ERROR = 0.3
"""Quality is known at the ends of epochs only: part of an epoch."""
FAR_ERROR = 0.6
"""A ratio of epochs, seen at no quality at all, against that at the target (logarithm)."""
OWN_ERROR = 0.4
"""Epochs guessed from one curve alone, at no quality at all (logarithm)."""
STEEP = 3.0
"""A training needs exp(STEEP sqrt(1 - share of the target)) times the epochs it has had: quality
comes ever more slowly."""
FEWEST_EPOCHS = 3.0
"""Guessed for any training that is not done after one."""


class Course:
    """The way to the target of one problem.

    Args:
        problem: quality and its target, and the most epochs.
    """

    def __init__(self, problem: Problem) -> None:
        self.quality, self.limits = problem.quality, problem.limits
        self.first: float | None = None
        """The first quality that was ever seen: where the way begins, if it cannot be at zero."""

    def share(self, level: float | None, epochs: float) -> float:
        """How far along a quality is: from 0, to 1 at the target."""
        target = self.quality.target
        if target is None:
            most = self.limits.epochs
            return min(epochs / most, 1.0) if most else 1 - 1 / (1 + epochs)
        if level is None:
            return 0.0
        if self.quality.reached(level):
            return 1.0
        if target > 0 and level > 0:
            return level / target if self.quality.maximize else target / level
        if self.first is None or self.first == target:
            return 0.5
        return min(max((level - self.first) / (target - self.first), 0.0), 1.0)

    def share_of(self, runner: Runner) -> float:
        """How far along a training is."""
        return self.share(runner.best, runner.epochs)

    def needed(self, runner: Runner) -> float:
        """Epochs to the target, by its own curve."""
        if runner.reached is not None:
            return runner.reached
        if self.quality.target is None:
            return self.limits.epochs or 2 * runner.epochs
        # More than it may have is no less of a difference: one that stands still must fall behind.
        guess = math.exp(self.guess(runner.epochs, runner.best))
        return max(guess, FEWEST_EPOCHS, runner.epochs + 1)

    def guess(self, epochs: float, level: float | None) -> float:
        """Logarithm of the epochs to the target, from the quality after so many."""
        return math.log(epochs) + STEEP * math.sqrt(1 - self.share(level, epochs))

    def share_after(self, share: float, epochs_factor: float) -> float:
        """How far along it will be with so many times the epochs, by the same rule."""
        left = math.sqrt(1 - share) - math.log(epochs_factor) / STEEP
        return 1 - min(max(left, 0.0), 1.0) ** 2

    def compared_variance(self, epochs: float, share: float) -> float:
        """Of the logarithm of a ratio of epochs, seen after so many, so far along."""
        return (
            SEED_ERROR**2 + (EPOCH_ERROR / max(epochs, 1.0)) ** 2 + (FAR_ERROR * (1 - share)) ** 2
        )

    def own_variance(self, epochs: float, share: float) -> float:
        """Of the logarithm of the epochs needed, by one curve alone."""
        return SEED_ERROR**2 + (EPOCH_ERROR / max(epochs, 1.0)) ** 2 + OWN_ERROR**2 * (1 - share)
