"""Strategies that train each configuration once: grid and random search."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator

import numpy as np

from wattloop.core.errors import ConfigError
from wattloop.tune.search_problem import Problem
from wattloop.tune.segment import Progress, Segment, Status
from wattloop.tune.space import Configuration
from wattloop.tune.strategies.base import Asked, Chosen, Strategy, StrategyEvent
from wattloop.tune.strategies.candidates import Candidate, CandidateTable

DRAWS = 200
"""Attempts to draw a configuration that was not drawn before."""
CLOSE = 1e-9


class OneByOne(Strategy):
    """Base of strategies with one segment per configuration; the default comes first.

    A training that a limit of the search has cut is not a result: it resumes when the limit is
    raised.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.ledger = CandidateTable(problem)
        self._cut: dict[str, Candidate] = {}

    @abstractmethod
    def propose(self) -> Configuration | None:
        """Return a configuration that was not started before; None when none is left."""

    def learn(self, candidate: Candidate) -> None:
        """Learn from a finished candidate, failed or not."""

    def ask(self) -> Asked:
        if self._cut:
            return self.rest(next(iter(self._cut)))
        if self.ledger.full:
            return None
        first = self.ledger.default if not self.ledger else None
        found = dict(first) if first else self.propose()
        return None if found is None else self.ledger.segment(self.ledger.begin(found))

    def rest(self, candidate: str) -> Segment:
        return self.ledger.segment(self._cut.pop(candidate))

    def tell(self, segment: Segment, progress: Progress) -> None:
        epochs = segment.until.epochs
        early = epochs is None or progress.epochs < epochs - CLOSE
        cut = progress.status is Status.PAUSED and early
        candidate = self.ledger.tell(segment, progress, cut=cut)
        if candidate.cut:
            self._cut[candidate.name] = candidate
        else:
            self.learn(candidate)

    def best(self) -> Chosen | None:
        return self.ledger.best()

    def front(self) -> list[Chosen]:
        return self.ledger.front()

    def recall(self, events: Iterable[StrategyEvent]) -> None:
        """Restore an earlier strategy, also one with higher limits."""
        self.ledger.bounded = False
        super().recall(events)
        self.ledger.bounded = True

    def alive(self) -> frozenset[str]:
        return frozenset(self._cut)


def draw_unseen(
    problem: Problem, ledger: CandidateTable, rng: np.random.Generator
) -> Configuration | None:
    """Draw a configuration that was not started before; None when none seems to be left."""
    for _ in range(DRAWS):
        found = problem.space.sample(rng)
        if not ledger.seen(found):
            return found
    if problem.space.size is None or len(ledger) >= problem.space.size:
        return None
    return next((found for found in problem.space.grid() if not ledger.seen(found)), None)


def check_ends(problem: Problem, name: str) -> None:
    """Raise ConfigError for a search that would never end."""
    limits = problem.limits
    ends = (limits.candidates, limits.energy_j, limits.time_s, problem.space.size)
    if all(end is None for end in ends):
        raise ConfigError(
            f"{name} never ends by itself over a range: give limits.trials, limits.energy or "
            "limits.time"
        )


class Grid(OneByOne):
    """Strategy that trains every configuration of the space, the default first.

    Args:
        problem: its parameters must have values that can be listed.
        shuffle: use a random order, so that an interrupted search is an even sample.
    """

    def __init__(self, problem: Problem, *, shuffle: bool = False) -> None:
        super().__init__(problem)
        self._left: Iterator[Configuration] = problem.space.grid()
        if shuffle:
            listed = list(self._left)
            np.random.default_rng(problem.seed).shuffle(listed)
            self._left = iter(listed)

    def propose(self) -> Configuration | None:
        return next((found for found in self._left if not self.ledger.seen(found)), None)


class Random(OneByOne):
    """Strategy that trains random configurations, the default first, none twice."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        check_ends(problem, "random")
        self._rng = np.random.default_rng(problem.seed)

    def propose(self) -> Configuration | None:
        return draw_unseen(self.problem, self.ledger, self._rng)
