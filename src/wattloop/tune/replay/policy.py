"""A job that is run again and again: who decides, each time, how."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from wattloop.tune.parameters import Choice
from wattloop.tune.problem import Limits, Problem
from wattloop.tune.progress import Progress
from wattloop.tune.replay.bench import BATCH, ReplayBench
from wattloop.tune.replay.workload import Workload
from wattloop.tune.segment import CAP_LEVER, CapSearch, Segment
from wattloop.tune.space import Space
from wattloop.tune.strategies.race import Race
from wattloop.tune.strategies.race_memory import Memory
from wattloop.tune.strategy import WAIT, Strategy

__all__ = ["Policy", "RacePolicy", "SearchPolicy", "Served", "replay_problem", "train"]

TRIES = 5
"""A job that fails is begun anew, but not for ever."""


@dataclass(frozen=True, slots=True)
class Served:
    """One run of the job, up to the target.

    Attributes:
        energy_j: everything that was spent, truly.
        winner_j: of it, on the training that is the winner's.
        batch_size, cap_w: the winner; None when the target was not reached.
        failures: trainings meant to reach the target that did not.
    """

    energy_j: float
    winner_j: float
    batch_size: int | None
    cap_w: float | None
    failures: int = 0

    @property
    def reached(self) -> bool:
        """Whether the job was done."""
        return self.batch_size is not None


class Policy(Protocol):
    """Serves the same job, time after time."""

    def serve(self, bench: ReplayBench) -> Served:
        """Run it once, on a fresh bench, until the target is reached."""


def replay_problem(workload: Workload, seed: int) -> Problem:
    """What a strategy is told of a workload."""
    return Problem(
        space=Space({BATCH: Choice(values=workload.batch_sizes)}),
        quality=workload.wanted,
        default={BATCH: workload.default},
        limits=Limits(epochs=workload.max_epochs),
        cap=CapSearch(),
        seed=seed,
    )


def train(bench: ReplayBench, batch_size: int, cap_w: float | None, label: str) -> Progress:
    """One whole training; a cap of None is looked for on the way."""
    return bench.run(
        Segment(
            key=label,
            candidate=label,
            parameters={BATCH: batch_size},
            levers={} if cap_w is None else {CAP_LEVER: cap_w},
            cap=CapSearch() if cap_w is None else None,
        )
    )


def run_search(strategy: Strategy, bench: ReplayBench) -> None:
    """Everything the strategy asks for."""
    while (segment := strategy.ask()) is not None:
        assert segment is not WAIT  # one segment at a time
        strategy.tell(segment, bench.run(segment))
        alive = strategy.alive()
        if alive is not None and segment.candidate not in alive:
            bench.let_go(segment.candidate)


class SearchPolicy:
    """Any strategy: search once, then train its choice for ever.

    Args:
        workload: for the default, should the choice fail.
        make: the strategy.
    """

    def __init__(self, workload: Workload, make: Callable[[], Strategy]) -> None:
        self.workload, self._make = workload, make
        self._chosen: tuple[int, float] | None = None

    def serve(self, bench: ReplayBench) -> Served:
        """The first time search, then train."""
        if self._chosen is not None:
            return _trained(bench, self.workload, self._chosen)
        strategy = self._make()
        run_search(strategy, bench)
        best = strategy.best()
        if best is None:
            return Served(bench.total_j, 0.0, None, None, 1)
        self._chosen = bench.trained[best.candidate]
        if best.candidate not in bench.reached:
            done = train(bench, *self._chosen, "final")
            if not self.workload.wanted.reached(done.best):
                return Served(bench.total_j, 0.0, None, None, 1)
            return Served(bench.total_j, bench.spent_j["final"], *self._chosen)
        return Served(bench.total_j, bench.spent_j[best.candidate], *self._chosen)


class RacePolicy:
    """`race`, which remembers the job."""

    def __init__(self, workload: Workload, seed: int) -> None:
        self.workload, self.seed = workload, seed
        self.memory = Memory()

    def serve(self, bench: ReplayBench) -> Served:
        """Search with what is remembered, and remember more."""
        race = Race(replay_problem(self.workload, self.seed), memory=self.memory)
        run_search(race, bench)
        race.remember(self.memory)
        best = race.best()
        failures = sum(bool(r.fault) and not r.slow for r in race.runners) if best is None else 0
        if best is None:
            return Served(bench.total_j, 0.0, None, None, failures)
        return Served(bench.total_j, bench.spent_j[best.candidate], *bench.trained[best.candidate])


def _trained(bench: ReplayBench, workload: Workload, chosen: tuple[int, float]) -> Served:
    """A training of the choice, begun anew where it fails."""
    for attempt in range(TRIES):
        label = f"run {attempt}"
        done = train(bench, *chosen, label)
        if workload.wanted.reached(done.best):
            return Served(bench.total_j, bench.spent_j[label], *chosen, failures=attempt)
    return Served(bench.total_j, 0.0, None, None, TRIES)
