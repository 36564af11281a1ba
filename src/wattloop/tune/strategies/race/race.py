"""`race`: least energy to a target quality, by comparing quality per joule."""

import math
from collections.abc import Mapping

import numpy as np

from wattloop.core.errors import ConfigError, StrategyError
from wattloop.core.units import format_duration, short_energy
from wattloop.tune.search_problem import Problem
from wattloop.tune.segment import Progress, Segment, Status, Value
from wattloop.tune.space import configuration_key
from wattloop.tune.strategies.base import WAIT, Asked, Chosen, Strategy
from wattloop.tune.strategies.race.ranking import HOPELESS, Ranking
from wattloop.tune.strategies.race.runner import Runner
from wattloop.tune.strategies.race.segments import Segments
from wattloop.tune.strategies.race.warm_start import WarmStart

TRIES = 20
"""Draws per configuration, before a space counts as too small."""


def starters(problem: Problem, most: int) -> list[dict[str, Value]]:
    """Return complete configurations, the default first, no two the same.

    A learning rate that sweeps decide is the default's, so that configurations which differ only in
    it are one.
    """
    if most < 1:
        raise ConfigError(f"race: {most} candidates; give at least 1")
    space, draw = problem.space, np.random.default_rng([problem.seed, 0xACE])
    found: dict[str, dict[str, Value]] = {}

    def add(values: Mapping[str, Value]) -> None:
        values = dict(values)
        if problem.rate is not None and problem.rate in values and found:
            first = next(iter(found.values()))
            values[problem.rate] = first.get(problem.rate, values[problem.rate])
        found.setdefault(configuration_key(values), values)

    if problem.default:
        add(space.complete(problem.default))
    size = _countable(problem)
    if size is not None and size <= most:
        for values in space.grid():
            add(values)
        return list(found.values())[: max(most, size)]
    for _ in range(TRIES * most):
        if len(found) >= most:
            break
        add(space.sample(draw))
    return list(found.values())


def _countable(problem: Problem) -> int | None:
    """Return the size of the space without a swept learning rate; None when infinite."""
    space = problem.space
    listed = [
        len(values) if (values := parameter.listed()) is not None else None
        for name, parameter in space.parameters.items()
        if name != problem.rate
    ]
    if any(count is None for count in listed):
        return None
    if problem.rate is not None and space.parameters[problem.rate].listed() is None:
        return None
    product = 1
    for count in listed:
        product *= count or 1
    return product if product > 10_000 else space.size


# Quality at equal epochs hardly ranks configurations by their energy to the target; quality at
# equal joules does. So the cost of a candidate is its epochs, estimated from how early it passes
# qualities that others have passed too, times the energy of an epoch under its own best cap.
# The default runs first. Then the strategy repeatedly chooses: advance the leader, or another
# candidate by one rung. A rung is worth its cost when the expected saving, over `runs` trainings,
# exceeds it. A short job therefore only searches for its cap. The leader may change until a leader
# reaches the target.

RUNS = 6.0
BUDGET = 1.0
START = 24
WORTH = 2.0
"""Required ratio of promise to cost of a rung: the most promising of many is overestimated."""
SHORT = 4.0
"""Epochs."""
RUNG = 1.5
"""Next rung of a candidate that does not lead: so many times the epochs."""
CHUNK = 1.3
"""Epochs of the leader until the next decision: so many times the epochs."""
LONG_S = 60.0
"""In an epoch this long the start of a training, some seconds, does not matter."""
LONGER = 1.2
"""A known job is not searched again until it takes so many times its usual epochs."""


class Race(Strategy):
    """Strategy that finds the cheapest way to a target quality, and trains it there.

    Args:
        problem: with a target; without one candidates are compared at the best quality that two
            have in common, and the winner is trained until its own end.
        runs: trainings over which a saving counts. More looks further, and spends more on it.
        budget: what may be spent on others than the leader, as part of what the default is
            expected to take.
        start: configurations that may take part, where the space has more.
        memory: of earlier searches for the same job. Then nothing is searched any more: the best is
            trained, or another where that is expected to pay within `runs` trainings.
    """

    def __init__(
        self,
        problem: Problem,
        *,
        runs: float = RUNS,
        budget: float = BUDGET,
        start: int = START,
        memory: WarmStart | None = None,
    ) -> None:
        super().__init__(problem)
        for name, value in (("runs", runs), ("budget", budget)):
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"race: {name} is {value:g}; give a number above 0")
        self.runs, self.budget = runs, budget
        most = problem.limits.candidates
        self.configurations = starters(problem, start if most is None else min(start, most))
        split = [problem.space.split(values) for values in self.configurations]
        self.runners = [
            Runner(f"c{number}", own, {name: v for name, v in levers.items() if v is not None})
            for number, (own, levers) in enumerate(split)
        ]
        self._index = {runner.name: i for i, runner in enumerate(self.runners)}
        self._again = bool(memory)
        past = [] if memory is None else self._remembered(memory)
        self.ranking = Ranking(problem, self.configurations, self.runners, past)
        self._busy: dict[str, str] = {}
        self._picked: int | None = None
        self._segments = Segments(problem, self.runners)

    def ask(self) -> Asked:
        segment = self._next()
        if isinstance(segment, Segment):
            self._busy[segment.candidate] = segment.key
            self._runner(segment.candidate).segments += 1
        return segment

    def tell(self, segment: Segment, progress: Progress) -> None:
        if self._busy.get(segment.candidate) != segment.key:
            raise StrategyError(f"segment {segment.key!r} was not asked for, or told before")
        del self._busy[segment.candidate]
        runner = self._runner(segment.candidate)
        if segment.rates is not None and (
            progress.status.alive or progress.status is Status.NOT_SUPPORTED
        ):
            self._segments.swept(runner, segment.rates, progress)
        else:
            self._take(runner, segment, progress)
        self.ranking.refresh()
        self._give_up_hopeless()

    def best(self) -> Chosen | None:
        costs = self.ranking.costs
        good = [i for i, r in enumerate(self.runners) if r.reached is not None and not r.fault]
        if not good:
            return None
        runner = self.runners[min(good, key=lambda i: (costs.get(i, math.inf), i))]
        epoch = runner.epoch
        shown = short_energy if runner.metered else format_duration
        taken = "" if epoch is None else f" of {shown(epoch.energy_j)} each"
        others = sum(bool(r.points) for r in self.runners) - 1
        ended = "ended without a target" if self.problem.quality.target is None else "good enough"
        return Chosen(
            candidate=runner.name,
            parameters=dict(runner.parameters),
            levers=dict(runner.levers),
            learning_rate=runner.learning_rate,
            why=f"{ended} after {runner.reached:g} epoch{'s' * (runner.reached != 1)}{taken}, "
            f"{others} other{'s' * (others != 1)} tried",
        )

    def alive(self) -> frozenset[str]:
        return frozenset(runner.name for runner in self.runners if not runner.fault)

    def remember(self, memory: WarmStart) -> None:
        memory.add(zip(self.configurations, self.runners, strict=True))

    def _take(self, runner: Runner, segment: Segment, progress: Progress) -> None:
        most = self.problem.limits.epochs
        runner.take(segment, progress, self.problem.quality)
        self._segments.windowed(runner, segment, progress)
        if progress.status is Status.ENDED:
            if runner.reached is None and self.problem.quality.target is not None:
                runner.fault = "came to its end below the target"
            else:
                runner.reached = runner.reached or runner.epochs
        elif not progress.status.alive:
            runner.fault = progress.message or progress.status.value
        elif runner.reached is None and most is not None and runner.epochs >= most - 1e-9:
            if self.problem.quality.target is None:
                runner.reached = runner.epochs
            else:
                runner.fault = "below the target after all epochs it may have"

    def _give_up_hopeless(self) -> None:
        ranking = self.ranking
        if not ranking.costs:
            return
        leader = ranking.leader(self.runs)
        for index, runner in enumerate(self.runners[1:], start=1):
            if index == leader or runner.fault or not runner.points or runner.reached:
                continue
            if runner.name not in self._busy and ranking.behind(index, leader) > HOPELESS:
                runner.fault, runner.slow = "costs more", True

    def _next(self) -> Asked:
        if self._again and self.ranking.costs:
            return self._train_again()
        default = self.runners[0]
        if not default.fault and (not default.points or self._start_unknown()):
            if self._busy:
                return WAIT
            return self._segments.next(default, math.floor(default.epochs) + 1.0)
        if not self.ranking.costs:
            waiting = [r for r in self.runners if not r.fault and r.name not in self._busy]
            if waiting and not self._busy:
                return self._segments.next(waiting[0], 1.0)
            return WAIT if self._busy else None
        leader = self.ranking.leader(self.runs)
        runner = self.runners[leader]
        if runner.reached is not None:
            return WAIT if self._busy else None
        challenger = self._challenger(leader)
        if challenger is not None:
            return self._segments.next(self.runners[challenger], self._rung_epochs(challenger))
        if runner.name in self._busy:
            return WAIT
        further = max(math.floor(runner.epochs) + 1, math.ceil(CHUNK * runner.epochs))
        return self._segments.next(runner, max(further, self._segments.epochs_for_cap(runner)))

    def _start_unknown(self) -> bool:
        """Return whether the default's only epoch may be mostly its start."""
        default = self.runners[0]
        if default.opening.epochs < 1 or default.opening.time_s >= LONG_S:
            return False
        # A cap may be searched in the second epoch; then the third is the first to compare with.
        return default.started is None and default.reached is None and default.epochs < 3

    def _challenger(self, leader: int) -> int | None:
        """Return the candidate whose next rung is most worth its cost; None when none is."""
        ranking = self.ranking
        room_j = self._room_j(leader)
        # In a short job only a cheaper one can win by much.
        is_short = math.exp(ranking.need.value(leader)) <= SHORT
        best: tuple[float, int] | None = None
        for index, runner in enumerate(self.runners):
            if index == leader or runner.fault or runner.name in self._busy:
                continue
            if ranking.is_ahead(index, leader):
                continue
            if is_short and ranking.dearer(index, leader):
                continue
            epochs = self._rung_epochs(index)
            if ranking.energy_j(index, epochs - runner.epochs) > room_j:
                continue
            saving, cost = ranking.worth(index, leader, epochs)
            ratio = self.runs * ranking.costs[leader] * saving / cost
            if ratio > WORTH and (best is None or ratio > best[0]):
                best = (ratio, index)
        return None if best is None else best[1]

    def _room_j(self, leader: int) -> float:
        whole_j = self.ranking.whole_j(leader if self.runners[0].fault else 0)
        spent_j = sum(r.spent_j for i, r in enumerate(self.runners) if i != leader)
        return self.budget * whole_j - spent_j

    def _rung_epochs(self, index: int) -> float:
        done = math.floor(self.runners[index].epochs)
        return max(done + 1.0, math.ceil(RUNG * done))

    def _train_again(self) -> Asked:
        """Train the most promising candidate of a known job, as long as it stays so."""
        if self._busy:
            return WAIT
        known = self._picked is not None and self.ranking.knows_rate(self._picked)
        if self._picked is None or not known:
            self._picked = self._promising(self.ranking.leader(self.runs))
        elif self.runners[self._picked].points:
            # The next run may choose any; now only the first to reach the target matters.
            self._picked = self.ranking.leader(0.0)
        runner = self.runners[self._picked]
        if runner.reached is not None:
            return None
        expected = math.exp(self.ranking.need.value(self._picked))
        return self._segments.next(
            runner, math.ceil(max(CHUNK * runner.epochs, LONGER * expected, 1.0))
        )

    def _promising(self, leader: int) -> int:
        """Return the leader, or a candidate that saves more later than it loses now."""
        best = (0.0, leader)
        for index, runner in enumerate(self.runners):
            if index != leader and not runner.fault:
                saving, loss = self.ranking.full_run(index, leader)
                best = max(best, (self.runs * saving / WORTH - loss, index))
        return best[1]

    def _remembered(self, memory: WarmStart) -> list[tuple[int, Runner]]:
        past = []
        for index, configuration in enumerate(self.configurations):
            for known in memory.of(configuration):
                past.append((index, known))
                runner = self.runners[index]
                if runner.cap is None and known.cap is not None:
                    runner.cap, runner.levers = known.cap, dict(known.levers)
                if runner.learning_rate is None and runner.swept is None:
                    runner.learning_rate, runner.swept = known.learning_rate, known.swept
        return past

    def _runner(self, name: str) -> Runner:
        return self.runners[self._index[name]]
