"""Policies for a recurring job, among them Zeus (NSDI 2023) as a baseline."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import fmean, pvariance
from typing import Protocol

import numpy as np

from wattloop.core.errors import ConfigError
from wattloop.tune.replay.executor import BATCH, ReplayExecutor
from wattloop.tune.replay.tables import RecordedWorkload
from wattloop.tune.search_problem import Limits, Problem
from wattloop.tune.segment import CAP_LEVER, CapRequest, Progress, Segment, Status, Until, Value
from wattloop.tune.space import Choice, Parameter, Space
from wattloop.tune.strategies import strategy_named
from wattloop.tune.strategies.base import WAIT, Strategy
from wattloop.tune.strategies.race.race import Race
from wattloop.tune.strategies.race.warm_start import WarmStart

TRIES = 5
"""Attempts at a job that fails."""
CLOSE = 1.05


@dataclass(frozen=True, slots=True)
class ServedRun:
    """Result of one run of the job, up to the target.

    Attributes:
        winner_j: of it, on the training that is the winner's.
        batch_size, cap_w: the winner; None when the target was not reached.
        failures: trainings meant to reach the target that did not.
        close_j: spent until the best known was within 5% of the best possible; None if it never
            was, or was not checked.
    """

    energy_j: float
    winner_j: float = 0.0
    batch_size: int | None = None
    cap_w: float | None = None
    failures: int = 0
    close_j: float | None = None

    @property
    def reached(self) -> bool:
        return self.batch_size is not None


class ReplayPolicy(Protocol):
    """Policy that serves the same job repeatedly."""

    def serve(self, executor: ReplayExecutor) -> ServedRun:
        """Run the job once, on a new executor, until the target is reached."""


class SearchPolicy:
    """Policy of any strategy: search once, then train its choice."""

    def __init__(self, workload: RecordedWorkload, make: Callable[[], Strategy]) -> None:
        self.workload, self._make = workload, make
        self._chosen: tuple[int, float] | None = None

    def serve(self, executor: ReplayExecutor) -> ServedRun:
        if self._chosen is not None:
            return _trained(executor, self._chosen)
        strategy = self._make()
        close_j = _searched(strategy, executor)
        best = strategy.best()
        if best is not None and best.candidate in executor.reached:
            self._chosen = executor.trained[best.candidate]
            spent_j = executor.spent_j[best.candidate]
            return ServedRun(executor.total_j, spent_j, *self._chosen, close_j=close_j)
        # The job must still be done: with the choice, or the default where there is none.
        default = (self.workload.default, self.workload.curves[self.workload.default].caps_w[-1])
        self._chosen = default if best is None else executor.trained[best.candidate]
        done = _trained(executor, self._chosen)
        return replace(done, failures=done.failures + (best is None))


class RacePolicy:
    """Policy of `race`, with its memory of the job."""

    def __init__(self, make: Callable[[WarmStart], Race]) -> None:
        self._make = make
        self._memory = WarmStart()

    def serve(self, executor: ReplayExecutor) -> ServedRun:
        again = bool(self._memory)
        race = self._make(self._memory)
        close_j = _searched(race, executor)
        race.remember(self._memory)
        best = race.best()
        failed = sum(bool(runner.fault) and not runner.slow for runner in race.runners)
        if best is None:
            return ServedRun(executor.total_j, failures=max(failed, 1))
        return ServedRun(
            executor.total_j,
            executor.spent_j[best.candidate],
            *executor.trained[best.candidate],
            failures=failed if again else 0,
            close_j=close_j,
        )


class DefaultCapPolicy:
    """Policy of the default batch size at the cap that is found in the first training."""

    def __init__(self, workload: RecordedWorkload) -> None:
        self.workload = workload
        self._cap_w: float | None = None

    def serve(self, executor: ReplayExecutor) -> ServedRun:
        if self._cap_w is not None:
            return _trained(executor, (self.workload.default, self._cap_w))
        for attempt in range(TRIES):
            name = f"first {attempt}"
            progress = _train(executor, self.workload.default, None, name)
            self._cap_w = executor.trained[name][1]
            if progress.cap is None:  # it ended before a cap was found
                self._cap_w = None
            if name in executor.reached:
                return ServedRun(
                    executor.total_j,
                    executor.spent_j[name],
                    *executor.trained[name],
                    failures=attempt,
                )
        return ServedRun(executor.total_j, failures=TRIES)


def _searched(strategy: Strategy, executor: ReplayExecutor) -> float | None:
    """Run all segments of a strategy; return the energy spent when its choice first was close."""
    workload, close_j = executor.workload, None
    while (segment := strategy.ask()) is not None:
        assert segment is not WAIT  # one segment at a time
        strategy.tell(segment, executor.run(segment))
        alive = strategy.alive()
        if alive is not None and segment.candidate not in alive:
            executor.release(segment.candidate)
        if close_j is None and segment.candidate in executor.reached:
            best = strategy.best()
            if best is not None and best.candidate in executor.reached:
                taken_j = workload.energy_j(*executor.trained[best.candidate])
                if taken_j <= CLOSE * workload.oracle_energy_j:
                    close_j = executor.total_j
    return close_j


def _trained(executor: ReplayExecutor, chosen: tuple[int, float]) -> ServedRun:
    for attempt in range(TRIES):
        name = f"run {attempt}"
        _train(executor, *chosen, name)
        if name in executor.reached:
            return ServedRun(executor.total_j, executor.spent_j[name], *chosen, failures=attempt)
    return ServedRun(executor.total_j, failures=TRIES)


def _train(executor: ReplayExecutor, batch_size: int, cap_w: float | None, name: str) -> Progress:
    """Run one whole training; a cap of None is searched on the way."""
    return executor.run(
        Segment(
            key=name,
            candidate=name,
            parameters={BATCH: batch_size},
            levers={} if cap_w is None else {CAP_LEVER: cap_w},
            cap=CapRequest() if cap_w is None else None,
        )
    )


# Policy of Zeus (NSDI 2023), re-implemented from the paper: exploration of batch sizes with
# pruning, then Thompson sampling with Gaussian arms. Power limits by just-in-time profiling: every
# limit for a few seconds at the beginning of the first training with a batch size. The cost is
# energy (eta = 1). A training is stopped when it has cost `BETA` times the least cost so far.

BETA = 2.0
PROFILE_S = 5.0
ROUNDS = 2
ZEUS_TRIES = 40


class ZeusPolicy:
    """Policy that serves a recurring job as Zeus does."""

    def __init__(self, workload: RecordedWorkload, seed: int) -> None:
        self.workload = workload
        self._draw = np.random.default_rng([seed, 2023])
        self._caps: dict[int, float] = {}
        self._costs: dict[int, list[float]] = {}
        self._worked = True
        """True when the previous training reached the target; steers the exploration."""
        self._arms: list[int] = []
        self._exploration: Iterator[int] | None = self._explore()

    def serve(self, executor: ReplayExecutor) -> ServedRun:
        for attempt in range(ZEUS_TRIES):
            size = self._next()
            label = f"run {attempt}"
            self._worked, told_j = self._train(executor, size, label)
            if self._worked:
                self._costs.setdefault(size, []).append(told_j)
                return ServedRun(
                    executor.total_j, executor.spent_j[label], *executor.trained[label]
                )
        return ServedRun(executor.total_j, failures=1)

    # -- batch sizes -----------------------------------------------------------------------

    def _next(self) -> int:
        if self._exploration is not None:
            size = next(self._exploration, None)
            if size is not None:
                return size
            self._exploration = None
        return min(self._arms, key=self._sampled_cost)

    def _explore(self) -> Iterator[int]:
        """Explore down from the default until one fails, then up; again from the best good one."""
        sizes, start = list(self.workload.batch_sizes), self.workload.default
        for _ in range(ROUNDS):
            good: list[int] = []
            yield start
            if self._worked:
                good.append(start)
            for side in (
                [s for s in reversed(sizes) if s < start],
                [s for s in sizes if s > start],
            ):
                for size in side:
                    yield size
                    if not self._worked:
                        break
                    good.append(size)
            sizes = sorted(good) or [start]
            start = min(sizes, key=lambda s: fmean(self._costs.get(s, [math.inf])))
        self._arms = sizes

    def _sampled_cost(self, size: int) -> float:
        """Draw from the posterior of the mean cost of an arm (Thompson sampling); flat prior."""
        costs = self._costs.get(size, [])
        if not costs:
            return -math.inf
        deviation = math.sqrt(pvariance(costs) / len(costs))
        return float(self._draw.normal(fmean(costs), deviation))

    # -- one training ----------------------------------------------------------------------

    def _train(self, executor: ReplayExecutor, size: int, label: str) -> tuple[bool, float]:
        """Train once; return whether it reached the target, and its energy by the meter."""
        least_j = min((min(costs) for costs in self._costs.values()), default=math.inf)
        told_j = 0.0
        while True:
            until = Until()
            if size not in self._caps:
                done, told_j = self._profile(executor, size, label)
                if done is not None:
                    return done, told_j
            if math.isfinite(least_j):
                until = Until(energy_j=max(BETA * least_j - told_j, 0.0))
            progress = self._segment(executor, size, label, self._caps[size], until)
            told_j += progress.energy_j or 0.0
            if progress.status is not Status.PAUSED:
                return progress.status is Status.REACHED, told_j
            if told_j >= BETA * least_j:
                return False, told_j

    def _profile(
        self, executor: ReplayExecutor, size: int, label: str
    ) -> tuple[bool | None, float]:
        """Profile every limit for some seconds; the training may end meanwhile."""
        told_j, per_epoch = 0.0, {}
        before = 0.0
        for cap_w in reversed(self.workload.curves[size].caps_w):
            until = Until(time_s=PROFILE_S, anywhere=True)
            progress = self._segment(executor, size, label, cap_w, until)
            told_j += progress.energy_j or 0.0
            if progress.status is not Status.PAUSED:
                return progress.status is Status.REACHED, told_j
            per_epoch[cap_w] = (progress.energy_j or 0.0) / (progress.epochs - before)
            before = progress.epochs
        self._caps[size] = min(per_epoch, key=lambda cap_w: per_epoch[cap_w])
        return None, told_j

    def _segment(
        self, executor: ReplayExecutor, size: int, label: str, cap_w: float, until: Until
    ) -> Progress:
        return executor.run(
            Segment(
                key=label,
                candidate=label,
                parameters={BATCH: size},
                levers={CAP_LEVER: cap_w},
                until=until,
            )
        )


RANDOM = 20
"""Configurations that `random` tries."""
Make = Callable[[RecordedWorkload, int], ReplayPolicy]


def make_policy(name: str, workload: RecordedWorkload, seed: int) -> ReplayPolicy:
    """Return the policy called `name`, for one workload."""
    check_policy(name)
    return POLICIES[name](workload, seed)


def check_policy(name: str) -> None:
    if name not in POLICIES:
        raise ConfigError(f"unknown strategy '{name}'; known are {', '.join(POLICIES)}")


def replay_problem(workload: RecordedWorkload, seed: int, *, caps: bool = True) -> Problem:
    """Return the problem: batch sizes, and a cap to be found inside trainings; with `caps` False,
    the caps are an ordinary parameter.
    """
    space: dict[str, Parameter] = {BATCH: Choice(values=workload.batch_sizes)}
    default: dict[str, Value] = {BATCH: workload.default}
    if not caps:
        limits = sorted({cap_w for curve in workload.curves.values() for cap_w in curve.caps_w})
        space[CAP_LEVER] = Choice(values=tuple(limits), lever="gpu/power_limit")
        default[CAP_LEVER] = limits[-1]
    return Problem(
        space=Space(space),
        quality=workload.wanted,
        default=default,
        limits=Limits(epochs=workload.max_epochs),
        cap=CapRequest() if caps else None,
        seed=seed,
    )


def _searched_policies(name: str, *, caps: bool, most: int | None = None) -> Make:
    def make(workload: RecordedWorkload, seed: int) -> ReplayPolicy:
        problem = replay_problem(workload, seed, caps=caps)
        if most is not None:
            problem = replace(problem, limits=replace(problem.limits, candidates=most))

        def strategy() -> Strategy:
            return strategy_named(name, problem)

        return SearchPolicy(workload, strategy)

    return make


POLICIES: Mapping[str, Make] = {
    "race": lambda workload, seed: RacePolicy(
        lambda memory: Race(replay_problem(workload, seed), memory=memory)
    ),
    "sm2": _searched_policies("sm2", caps=True),
    "grid": _searched_policies("grid", caps=False),
    "random": _searched_policies("random", caps=False, most=RANDOM),
    "zeus": ZeusPolicy,
    "default-cap": lambda workload, seed: DefaultCapPolicy(workload),
    "asha": _searched_policies("asha", caps=True),
}
"""Name -> policy. `asha` shows the result of plain halving."""
