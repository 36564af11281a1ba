"""Ranking of the candidates by estimated cost, and the value of each next rung."""

import math
from collections.abc import Mapping, Sequence

from wattloop.accounting.metrics import Point
from wattloop.tune.objective import TrainingCost
from wattloop.tune.search_problem import Problem
from wattloop.tune.segment import Value
from wattloop.tune.strategies.race.epochs_to_target import EpochsToTarget
from wattloop.tune.strategies.race.runner import EpochCost, Runner, StartCost
from wattloop.tune.strategies.race.segments import wants_cap
from wattloop.tune.strategies.race.surrogate import (
    Observation,
    Surrogate,
    covariance,
    expected_saving,
    fit_surrogate,
)

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
SCORED = ("energy", "time", "cost", "carbon", "edp", "ed2p", "eds")
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
