"""A job that is run again and again: who decides, each time, how."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from wattloop.tune.progress import Progress
from wattloop.tune.replay.bench import BATCH, ReplayBench
from wattloop.tune.replay.workload import Workload
from wattloop.tune.segment import CAP_LEVER, CapSearch, Segment
from wattloop.tune.strategies.race import Race
from wattloop.tune.strategies.race_memory import Memory
from wattloop.tune.strategy import WAIT, Strategy

__all__ = ["DefaultCapPolicy", "Policy", "RacePolicy", "SearchPolicy", "Served"]

TRIES = 5
"""A job that fails is begun anew, but not for ever."""
CLOSE = 1.05


@dataclass(frozen=True, slots=True)
class Served:
    """One run of the job, up to the target.

    Attributes:
        energy_j: everything that was spent, truly.
        winner_j: of it, on the training that is the winner's.
        batch_size, cap_w: the winner; None when the target was not reached.
        failures: trainings meant to reach the target that did not.
        close_j: spent until the best known was within 5% of the best possible; None if it never
            was, or was not looked at.
    """

    energy_j: float
    winner_j: float = 0.0
    batch_size: int | None = None
    cap_w: float | None = None
    failures: int = 0
    close_j: float | None = None

    @property
    def reached(self) -> bool:
        """Whether the job was done."""
        return self.batch_size is not None


class Policy(Protocol):
    """Serves the same job, time after time."""

    def serve(self, bench: ReplayBench) -> Served:
        """Run it once, on a fresh bench, until the target is reached."""


class SearchPolicy:
    """Any strategy: search once, then train its choice for ever.

    Args:
        workload: what is searched.
        make: the strategy.
    """

    def __init__(self, workload: Workload, make: Callable[[], Strategy]) -> None:
        self.workload, self._make = workload, make
        self._chosen: tuple[int, float] | None = None

    def serve(self, bench: ReplayBench) -> Served:
        """The first time search, then train."""
        if self._chosen is not None:
            return _trained(bench, self._chosen)
        strategy = self._make()
        close_j = _searched(strategy, bench)
        best = strategy.best()
        if best is not None and best.candidate in bench.reached:
            self._chosen = bench.trained[best.candidate]
            spent_j = bench.spent_j[best.candidate]
            return Served(bench.total_j, spent_j, *self._chosen, close_j=close_j)
        # The job is still to be done: with its choice, or the default where there is none.
        default = (self.workload.default, self.workload.curves[self.workload.default].caps_w[-1])
        self._chosen = default if best is None else bench.trained[best.candidate]
        done = _trained(bench, self._chosen)
        return replace(done, failures=done.failures + (best is None))


class RacePolicy:
    """`race`, which remembers the job.

    Args:
        make: a race with what is remembered.
    """

    def __init__(self, make: Callable[[Memory], Race]) -> None:
        self._make = make
        self._memory = Memory()

    def serve(self, bench: ReplayBench) -> Served:
        """Search with what is remembered, and remember more."""
        again = bool(self._memory)
        race = self._make(self._memory)
        close_j = _searched(race, bench)
        race.remember(self._memory)
        best = race.best()
        failed = sum(bool(runner.fault) and not runner.slow for runner in race.runners)
        if best is None:
            return Served(bench.total_j, failures=max(failed, 1))
        return Served(
            bench.total_j,
            bench.spent_j[best.candidate],
            *bench.trained[best.candidate],
            failures=failed if again else 0,
            close_j=close_j,
        )


class DefaultCapPolicy:
    """The default batch size at the cap that is found in the first training."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self._cap_w: float | None = None

    def serve(self, bench: ReplayBench) -> Served:
        """Train the default."""
        if self._cap_w is not None:
            return _trained(bench, (self.workload.default, self._cap_w))
        for attempt in range(TRIES):
            name = f"first {attempt}"
            progress = _train(bench, self.workload.default, None, name)
            self._cap_w = bench.trained[name][1]
            if progress.cap is None:  # it ended before a cap was found
                self._cap_w = None
            if name in bench.reached:
                return Served(
                    bench.total_j, bench.spent_j[name], *bench.trained[name], failures=attempt
                )
        return Served(bench.total_j, failures=TRIES)


def _searched(strategy: Strategy, bench: ReplayBench) -> float | None:
    """Run everything the strategy asks for; what was spent when its choice first was close."""
    workload, close_j = bench.workload, None
    while (segment := strategy.ask()) is not None:
        assert segment is not WAIT  # one segment at a time
        strategy.tell(segment, bench.run(segment))
        alive = strategy.alive()
        if alive is not None and segment.candidate not in alive:
            bench.let_go(segment.candidate)
        if close_j is None and segment.candidate in bench.reached:
            best = strategy.best()
            if best is not None and best.candidate in bench.reached:
                taken_j = workload.energy_j(*bench.trained[best.candidate])
                if taken_j <= CLOSE * workload.oracle_energy_j:
                    close_j = bench.total_j
    return close_j


def _trained(bench: ReplayBench, chosen: tuple[int, float]) -> Served:
    """A training of the choice, begun anew where it fails."""
    for attempt in range(TRIES):
        name = f"run {attempt}"
        _train(bench, *chosen, name)
        if name in bench.reached:
            return Served(bench.total_j, bench.spent_j[name], *chosen, failures=attempt)
    return Served(bench.total_j, failures=TRIES)


def _train(bench: ReplayBench, batch_size: int, cap_w: float | None, name: str) -> Progress:
    """One whole training; a cap of None is looked for on the way."""
    return bench.run(
        Segment(
            key=name,
            candidate=name,
            parameters={BATCH: batch_size},
            levers={} if cap_w is None else {CAP_LEVER: cap_w},
            cap=CapSearch() if cap_w is None else None,
        )
    )
