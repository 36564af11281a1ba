"""How many epochs each configuration needs, as far as trainings that are not done can tell.

Two trainings that have both passed a quality tell the ratio of their epochs, the better the closer
that quality is to the target. All are compared with the one that has come furthest.
"""

import math
from collections.abc import Mapping, Sequence

from wattloop.tune.problem import Problem
from wattloop.tune.segment import Value
from wattloop.tune.strategies.race_belief import Belief, Seen, believe, covariance
from wattloop.tune.strategies.race_course import SEED_ERROR, Course
from wattloop.tune.strategies.race_runner import Runner

__all__ = ["Curve", "Needs"]

SPREAD = 0.8
"""Of the logarithm of epochs to the target, between configurations far from each other."""
LEVEL = 3.0
"""Of the logarithm of the epochs that any training of the problem needs."""
FAILED = 1.0
"""A training that fails needed at least so much more (logarithm) than the best."""
SURE = 4
"""The usual spread between trainings of one configuration counts as so many that were seen."""

Curve = tuple[int, Runner]
"""Index of a configuration, and a training of it."""


class Needs:
    """Of the logarithm of epochs to the target.

    Args:
        problem: the space and the way to the target.
        configurations: of which epochs are asked.
    """

    def __init__(self, problem: Problem, configurations: Sequence[Mapping[str, Value]]) -> None:
        self.quality, self.course = problem.quality, Course(problem)
        space = problem.space
        # Epochs to the target do not depend on caps and clocks, nor on a rate that is swept.
        own = [name for name in space.varied if name not in (*space.hardware, problem.rate)]
        self._near = covariance(space, own, configurations, SPREAD) + LEVEL**2
        self.curves: Sequence[Curve] = ()
        self._hub: Curve | None = None
        self._told: list[tuple[Runner, list[Seen]]] = []

    def take(self, curves: Sequence[Curve]) -> None:
        """Everything that is known now."""
        course = self.course
        self.curves = curves
        if course.first is None:
            course.first = next((r.best for _, r in curves if r.best is not None), None)
        self._hub = max(curves, key=lambda curve: course.share_of(curve[1]), default=None)
        self._told = [(runner, self._tells(index, runner)) for index, runner in curves]

    def belief(self, further: tuple[int, Runner, float, float] | None = None) -> Belief:
        """Mean and covariance.

        Args:
            further: as it would be, but for its mean, with one training after so many epochs, so
                far along.
        """
        if self._hub is None:
            return believe(self._near, ())
        hub = self._hub[0]
        without = None if further is None else further[1]
        seen = [one for runner, told in self._told if runner is not without for one in told]
        if further is not None:
            index, _, epochs, share = further
            seen.append(Seen(index, None, 0.0, self.course.own_variance(epochs, share)))
            if index != hub:
                seen.append(Seen(index, hub, 0.0, self.course.compared_variance(epochs, share)))
        return believe(self._near, seen)

    def _tells(self, index: int, runner: Runner) -> list[Seen]:
        """What a training says of the epochs that its configuration needs."""
        assert self._hub is not None
        found = None if index == self._hub[0] else self._compared(index, runner)
        return [self._own(index, runner), *([] if found is None else [found])]

    def _own(self, index: int, runner: Runner) -> Seen:
        """What its own curve says."""
        guess = math.log(self.course.needed(runner))
        if runner.reached is not None:
            spread2 = (SURE * SEED_ERROR**2 + runner.spread2) / (SURE + runner.trainings - 1)
            return Seen(index, None, guess, spread2 / runner.trainings)
        share = self.course.share_of(runner)
        return Seen(index, None, guess, self.course.own_variance(runner.epochs, share))

    def _compared(self, index: int, runner: Runner) -> Seen | None:
        """Epochs to the best quality that it and the one that is furthest have both reached."""
        assert self._hub is not None
        hub, other = self._hub
        quality, course = self.quality, self.course
        if other.best is None:
            return None
        begun, at_first = other.first
        level = runner.best
        if level is None:  # it has not even come to the first level
            guess = course.guess(runner.epochs, None) - course.guess(begun, at_first)
            ratio = max(guess, math.log((runner.epochs + 0.5) / begun))
            return Seen(index, hub, ratio, course.compared_variance(1.0, 0.0))
        if quality.better(level, other.best):
            level = other.best
        if quality.target is not None and quality.reached(level):
            level = quality.target
        one, two = runner.epochs_to(level, quality), other.epochs_to(level, quality)
        if one is None or two is None:
            return None
        ratio = math.log(one / two)
        if quality.better(at_first, level):
            # The other one passed this level somewhere in its first epoch.
            ratio = max(ratio, course.guess(one, level) - course.guess(begun, at_first))
        # It may have trained on without getting any further, where the other one got further.
        later = other.epochs_beyond(level, quality)
        if later is not None:
            ratio = max(ratio, math.log(runner.epochs / later))
        if runner.fault and runner.reached is None and not runner.slow:
            ratio = max(ratio, FAILED)
        fewer = min(one, two)
        share = course.share(level, fewer)
        return Seen(index, hub, ratio, course.compared_variance(fewer, share))
