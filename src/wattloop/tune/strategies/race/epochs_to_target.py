"""Estimate of the epochs that each configuration needs to reach the target."""

import math
from collections.abc import Mapping, Sequence

from wattloop.tune.search_problem import Problem
from wattloop.tune.segment import Value
from wattloop.tune.strategies.race.runner import Runner
from wattloop.tune.strategies.race.surrogate import (
    Observation,
    Surrogate,
    covariance,
    fit_surrogate,
)

SEED_ERROR = 0.1
"""Relative difference in epochs between two trainings of one configuration."""
EPOCH_ERROR = 0.3
"""Part of an epoch: quality is known at the ends of epochs only."""
FAR_ERROR = 0.6
"""Error of a ratio of epochs, observed at no quality at all, against that at the target
(logarithm).
"""
OWN_ERROR = 0.4
"""Error of epochs estimated from one curve alone, at no quality at all (logarithm)."""
STEEP = 3.0
"""A training needs exp(STEEP sqrt(1 - share of the target)) times its epochs so far: quality
improves ever more slowly.
"""
FEWEST_EPOCHS = 3.0
"""Least estimate for any training that is not done after one epoch."""


class TargetProgress:
    """Progress of trainings towards the target of one problem."""

    def __init__(self, problem: Problem) -> None:
        self.quality, self.limits = problem.quality, problem.limits
        self.first: float | None = None
        """First quality that was observed: the start of the scale, if it cannot be zero."""

    def share(self, level: float | None, epochs: float) -> float:
        """Return the share of the target that a quality is: from 0, to 1 at the target."""
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
        return self.share(runner.best, runner.epochs)

    def needed(self, runner: Runner) -> float:
        """Return the epochs to the target, from its own curve."""
        if runner.reached is not None:
            return runner.reached
        if self.quality.target is None:
            return self.limits.epochs or 2 * runner.epochs
        # Not capped at the maximum of epochs: a training without progress must fall behind.
        guess = math.exp(self.guess(runner.epochs, runner.best))
        return max(guess, FEWEST_EPOCHS, runner.epochs + 1)

    def guess(self, epochs: float, level: float | None) -> float:
        """Return the logarithm of the epochs to the target, from the quality after so many."""
        return math.log(epochs) + STEEP * math.sqrt(1 - self.share(level, epochs))

    def share_after(self, share: float, epochs_factor: float) -> float:
        """Return the share after so many times the epochs, by the same rule."""
        left = math.sqrt(1 - share) - math.log(epochs_factor) / STEEP
        return 1 - min(max(left, 0.0), 1.0) ** 2

    def compared_variance(self, epochs: float, share: float) -> float:
        """Variance of the logarithm of a ratio of epochs, after so many, at this share."""
        return (
            SEED_ERROR**2 + (EPOCH_ERROR / max(epochs, 1.0)) ** 2 + (FAR_ERROR * (1 - share)) ** 2
        )

    def own_variance(self, epochs: float, share: float) -> float:
        """Return the variance of the logarithm of the epochs needed, from one curve alone."""
        return SEED_ERROR**2 + (EPOCH_ERROR / max(epochs, 1.0)) ** 2 + OWN_ERROR**2 * (1 - share)


# Two trainings that have both passed a quality give the ratio of their epochs, the more precisely
# the closer that quality is to the target. All are compared with the most advanced one.

SPREAD = 0.8
"""Spread of the logarithm of epochs to the target, between distant configurations."""
LEVEL = 3.0
"""Spread of the logarithm of the epochs that any training of the problem needs."""
FAILED = 1.0
"""A failed training needed at least so much more (logarithm) than the best."""
SURE = 4
"""The prior spread between trainings of one configuration counts as this many observations."""
Curve = tuple[int, Runner]
"""Index of a configuration, and a training of it."""


class EpochsToTarget:
    """Estimate of the logarithm of epochs to the target."""

    def __init__(self, problem: Problem, configurations: Sequence[Mapping[str, Value]]) -> None:
        self.quality, self.progress = problem.quality, TargetProgress(problem)
        space = problem.space
        # Epochs to the target do not depend on caps and clocks, nor on a swept rate.
        own = [name for name in space.varied if name not in (*space.hardware, problem.rate)]
        self._near = covariance(space, own, configurations, SPREAD) + LEVEL**2
        self.curves: Sequence[Curve] = ()
        self._hub: Curve | None = None
        self._told: list[tuple[Runner, list[Observation]]] = []

    def take(self, curves: Sequence[Curve]) -> None:
        progress = self.progress
        self.curves = curves
        if progress.first is None:
            progress.first = next((r.best for _, r in curves if r.best is not None), None)
        self._hub = max(curves, key=lambda curve: progress.share_of(curve[1]), default=None)
        self._told = [(runner, self._tells(index, runner)) for index, runner in curves]

    def estimate(self, further: tuple[int, Runner, float, float] | None = None) -> Surrogate:
        """Return mean and covariance; `further` is one more (index, runner, epochs, share)."""
        if self._hub is None:
            return fit_surrogate(self._near, ())
        hub = self._hub[0]
        without = None if further is None else further[1]
        seen = [one for runner, told in self._told if runner is not without for one in told]
        if further is not None:
            index, _, epochs, share = further
            seen.append(Observation(index, None, 0.0, self.progress.own_variance(epochs, share)))
            if index != hub:
                seen.append(
                    Observation(index, hub, 0.0, self.progress.compared_variance(epochs, share))
                )
        return fit_surrogate(self._near, seen)

    def _tells(self, index: int, runner: Runner) -> list[Observation]:
        assert self._hub is not None
        found = None if index == self._hub[0] else self._compared(index, runner)
        return [self._own(index, runner), *([] if found is None else [found])]

    def _own(self, index: int, runner: Runner) -> Observation:
        guess = math.log(self.progress.needed(runner))
        if runner.reached is not None:
            spread2 = (SURE * SEED_ERROR**2 + runner.spread2) / (SURE + runner.trainings - 1)
            return Observation(index, None, guess, spread2 / runner.trainings)
        share = self.progress.share_of(runner)
        return Observation(index, None, guess, self.progress.own_variance(runner.epochs, share))

    def _compared(self, index: int, runner: Runner) -> Observation | None:
        """Compare the epochs to the best quality that it and the most advanced one reached."""
        assert self._hub is not None
        hub, other = self._hub
        quality, progress = self.quality, self.progress
        if other.best is None:
            return None
        begun, at_first = other.first
        level = runner.best
        if level is None:  # it has not reached the first level
            guess = progress.guess(runner.epochs, None) - progress.guess(begun, at_first)
            ratio = max(guess, math.log((runner.epochs + 0.5) / begun))
            return Observation(index, hub, ratio, progress.compared_variance(1.0, 0.0))
        if quality.better(level, other.best):
            level = other.best
        if quality.target is not None and quality.reached(level):
            level = quality.target
        one, two = runner.epochs_to(level, quality), other.epochs_to(level, quality)
        if one is None or two is None:
            return None
        ratio = math.log(one / two)
        if quality.better(at_first, level):
            # The other one passed this level within its first epoch.
            ratio = max(ratio, progress.guess(one, level) - progress.guess(begun, at_first))
        # It may have trained without progress while the other one improved.
        later = other.epochs_beyond(level, quality)
        if later is not None:
            ratio = max(ratio, math.log(runner.epochs / later))
        if runner.fault and runner.reached is None and not runner.slow:
            ratio = max(ratio, FAILED)
        fewer = min(one, two)
        share = progress.share(level, fewer)
        return Observation(index, hub, ratio, progress.compared_variance(fewer, share))
