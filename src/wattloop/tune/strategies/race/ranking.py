"""Surrogate of the candidates, their ranking by estimated cost, and the value of each next rung."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from wattloop.accounting.energy_delay import Point
from wattloop.tune.objective import TrainingCost
from wattloop.tune.search_problem import Problem
from wattloop.tune.segment import Value
from wattloop.tune.space import Choice, Integer, Real, Space
from wattloop.tune.strategies.race.runner import EpochCost, Runner, StartCost
from wattloop.tune.strategies.race.segments import wants_cap

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
    """Gaussian process over the configurations in the race: mean and covariance.

    Observations are values of one configuration or differences of two. A value for one batch size
    informs the estimates of its neighbours, with their uncertainty.
    """

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


# Estimate of the epochs that each configuration needs to reach the target.

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


SPREAD_RATE = 1.5
"""Spread of the logarithm of the cost of an epoch, between distant configurations."""
CAP_ERROR = 0.1
"""Difference in the gain by a cap from one configuration to another."""
HOPELESS = 3.0
"""Standard deviations behind at which a candidate is dropped."""
PROMISE = 0.5
"""Standard deviations of a lead in epochs over the default that do not count."""
AS_MUCH = 0.02
"""Epochs whose costs differ by less cost the same."""
SCORED = ("energy", "time", "cost", "carbon", "edp", "ed2p", "e2dp", "eds")
"""Objectives that are above 0 and grow with the epochs; others are raced by energy."""


class Ranking:
    """Candidates with their estimated costs.

    Args:
        runners: of this search; the default is the first.
        past: index of the configuration, and a training of it in an earlier search.
    """

    def __init__(
        self,
        problem: Problem,
        configurations: Sequence[Mapping[str, Value]],
        runners: Sequence[Runner],
        past: Sequence[tuple[int, Runner]] = (),
    ) -> None:
        self.problem, self.runners, self.past = problem, runners, list(past)
        self._needs = EpochsToTarget(problem, configurations)
        self._progress = self._needs.progress
        space = problem.space
        self._near_rates = covariance(space, space.varied, configurations, SPREAD_RATE)
        one = EpochCost(1.0, 1.0, 0.0)
        self.degree = math.log2(self._score(one, 2.0) / self._score(one, 1.0))
        """The score grows with this power of the epochs: 2 for EDP."""
        self.refresh()

    def refresh(self) -> None:
        every = [*enumerate(self.runners), *self.past]
        starts = [start for _, runner in every if (start := runner.started) is not None]
        starts.sort(key=lambda start: start.energy_j)
        seen = starts[len(starts) // 2] if starts else None
        for runner in self.runners:
            runner.start = seen
        self.start = seen or StartCost()
        """Cost to start a training, whatever its configuration."""
        self._needs.take([(index, runner) for index, runner in every if runner.points])
        self.need = self._needs.estimate()
        """Estimate of the logarithm of epochs to the target."""
        self.rates, self._known = self._estimate_rates()
        learned = {index for index, _ in self._needs.curves}
        self.costs = {
            index: math.exp(self.rates.value(index) + self.degree * self.need.value(index))
            for index, runner in enumerate(self.runners)
            if not runner.fault and self._known[index] and index in learned
        }
        """Expected score of a whole training, for those with observations."""

    def leader(self, runs: float) -> int:
        """Return the candidate with the least cost for the rest of this training and `runs` to
        come; ties to the first.

        The cost of an epoch is measured, but fewer epochs than the default's are only estimated:
        early curves cross. So such a lead counts only as far as it exceeds its uncertainty.
        """

        def total(index: int) -> float:
            doubt = 0.0
            if index and 0 in self.costs:
                ahead, variance = self.need.against(index, 0)
                doubt = min(max(-ahead, 0.0), PROMISE * math.sqrt(variance))
            cost = self.costs[index] * math.exp(self.degree * doubt)
            return cost * (runs + 1 - self._done(index, doubt))

        # rounded, so that equal values are a tie
        return min(self.costs, key=lambda index: (float(f"{total(index):.9g}"), index))

    def worth(self, index: int, leader: int, epochs: float) -> tuple[float, float]:
        """Return the expected share of a training's cost that is saved if this one is trained for
        so many epochs, and the cost of that.
        """
        runner, ahead = self.runners[index], self._furthest(leader)
        mean, variance = self.need.against(index, leader)
        more, spread = self.rates.against(index, leader)
        limit = self._progress.share_of(ahead)
        if runner.points and runner.best is not None:
            share = self._progress.share_after(
                self._progress.share_of(runner), epochs / runner.epochs
            )
        else:
            later = epochs / (max(ahead.epochs, 1e-3) * math.exp(mean))
            share = self._progress.share_after(limit, later)
        after = self._needs.estimate((index, runner, epochs, min(share, limit)))
        _, left = after.against(index, leader)
        learned = max(variance - left, 0.0) * self.degree**2 + spread
        saving = expected_saving(self.degree * mean + more, math.sqrt(learned))
        rate = self.rates.value(index)
        if not self._known[index]:
            rate -= self.rates.deviation(index)
        cost = (epochs - runner.epochs) * math.exp(rate)
        if self.start.energy_j > 0 and not runner.segments:
            cost += self._score(EpochCost(self.start.energy_j, self.start.time_s, 0.0))
        return saving, cost

    def energy_j(self, index: int, epochs: float) -> float:
        """Return the energy of so many more epochs, and of the start before the first."""
        begin_j = 0.0 if self.runners[index].segments else self.start.energy_j
        return begin_j + self._epochs_j(index, epochs)

    def whole_j(self, index: int) -> float:
        """Return the energy of a whole training, at most its maximum of epochs."""
        epochs = min(math.exp(self.need.value(index)), self.problem.limits.epochs or math.inf)
        return self.start.energy_j + self._epochs_j(index, epochs)

    def behind(self, index: int, leader: int) -> float:
        """Return by how many standard deviations it is behind, with a tolerance of a twentieth."""
        mean, variance = self.need.against(index, leader)
        more, spread = self.rates.against(index, leader)
        deviation = math.sqrt(self.degree**2 * variance + spread)
        return (self.degree * mean + more - 0.05) / max(deviation, 1e-9)

    def dearer(self, index: int, leader: int) -> bool:
        """Return whether an epoch of it costs about as much as one of the leader, or more."""
        return self._known[index] and self.rates.against(index, leader)[0] > -AS_MUCH

    def is_ahead(self, index: int, leader: int) -> bool:
        """Return whether it is ahead in quality, so that the leader's own progress tells more."""
        runner = self.runners[index]
        ahead = self._furthest(leader)
        return bool(runner.points) and self._progress.share_of(runner) >= self._progress.share_of(
            ahead
        )

    def full_run(self, index: int, leader: int) -> tuple[float, float]:
        """Return the expected saving later and the loss now, as shares of a training's cost, if it
        is trained to the target in place of the leader.
        """
        mean, variance = self.need.against(index, leader)
        more, spread = self.rates.against(index, leader)
        epochs = math.exp(self.need.value(index))
        after = self._needs.estimate((index, self.runners[index], epochs, 1.0))
        _, left = after.against(index, leader)
        learned = max(variance - left, 0.0) * self.degree**2 + spread
        ahead = self.degree * mean + more
        # The mean of a log-normal: a poorly known cost may be many times as high.
        risk = (self.degree**2 * variance + spread) / 2
        return expected_saving(ahead, math.sqrt(learned)), math.expm1(ahead + risk)

    def knows_rate(self, index: int) -> bool:
        return self._known[index]

    def _epochs_j(self, index: int, epochs: float) -> float:
        epoch = self.runners[index].epoch or self.runners[0].epoch
        if epoch is None:
            return 0.0
        if not self._known[index]:
            return epoch.energy_j * epochs * math.exp(self.rates.against(index, 0)[0])
        return epoch.energy_j * epochs

    def _estimate_rates(self) -> tuple[Surrogate, list[bool]]:
        """Return the estimate of the logarithm of an epoch's score, and the measured candidates."""
        latest: dict[int, Runner] = {}
        for index, runner in self.past:  # those that reached the target come first
            if runner.epoch is not None:
                latest.setdefault(index, runner)
        ratios = [
            r.cap.energy_ratio for r in (*self.runners, *latest.values()) if r.cap is not None
        ]
        usual = sum(ratios) / len(ratios) if ratios else 1.0
        seen: list[Observation] = []
        for index, own in enumerate(self.runners):
            runner = own if own.epoch is not None else latest.get(index, own)
            epoch = runner.epoch
            if epoch is None:
                continue
            rate, error = self._score(epoch), epoch.error
            if wants_cap(self.problem, runner):
                rate, error = rate * usual, CAP_ERROR
            seen.append(Observation(index, None, math.log(rate), error**2 + 1e-6))
        known = {one.one for one in seen}
        estimate = fit_surrogate(self._near_rates, seen, seen[0].value if seen else 0.0)
        return estimate, [index in known for index in range(len(self.runners))]

    def _score(self, epoch: EpochCost, epochs: float = 1.0) -> float:
        objective = self.problem.objective
        if objective.names[0] not in SCORED:
            return epoch.energy_j * epochs
        default = self.runners[0].epoch
        reference = None if default is None else Point(default.time_s, default.energy_j)
        trained = TrainingCost(time_s=epoch.time_s * epochs, energy_j=epoch.energy_j * epochs)
        return objective.score(trained, reference or Point(1.0, 1.0))

    def _furthest(self, index: int) -> Runner:
        """Return the most advanced training of a configuration, in this search or before."""
        own = [runner for one, runner in self._needs.curves if one == index]
        return max(own, key=self._progress.share_of, default=self.runners[index])

    def _done(self, index: int, doubt: float) -> float:
        """Return the finished part of its training, with so much more (logarithm) to come."""
        runner = self.runners[index]
        if runner.reached is not None:
            return 1.0
        return min(runner.epochs / math.exp(self.need.value(index) + doubt), 1.0)
