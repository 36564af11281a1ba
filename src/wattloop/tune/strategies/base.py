"""Contract of a strategy: ask for a segment, tell its progress, until nothing is asked.

strategy = Race(problem)
while (segment := strategy.ask()) is not None:
    if segment is WAIT: ...           # only where several segments are under way at once
    strategy.tell(segment, run(segment))
strategy.best()

A strategy reads no clock, touches no device, and draws random numbers from the problem's seed only:
what it was told decides what it asks. A new strategy resumes a search when told its stored events.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal

from wattloop.control.lever import Setting
from wattloop.core.errors import StrategyError
from wattloop.tune.search_problem import Problem
from wattloop.tune.segment import Progress, Segment, Value


class _Wait(Enum):
    WAIT = "wait"


WAIT: Final = _Wait.WAIT
"""Nothing to ask until another segment has ended."""
Asked = Segment | Literal[_Wait.WAIT] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """Best configuration so far: its name in this search, how to train it, and the reason."""

    candidate: str
    parameters: Mapping[str, Value]
    levers: Mapping[str, Setting] = field(default_factory=dict)
    learning_rate: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class StrategyEvent:
    """Earlier event of a strategy: it asked for a segment, or was told of one."""

    segment: Segment
    progress: Progress | None = None


class Strategy(ABC):
    """Decision about what is trained next."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @abstractmethod
    def ask(self) -> Asked:
        """Return the next segment, `WAIT`, or None when the search is over."""

    @abstractmethod
    def tell(self, segment: Segment, progress: Progress) -> None:
        """Receive the progress of a segment that was asked for."""

    @abstractmethod
    def best(self) -> Chosen | None:
        """Return the configuration to use; None until one reaches the target."""

    def front(self) -> list[Chosen]:
        """Return the Pareto front: candidates that no other beats in all objectives."""
        best = self.best()
        return [] if best is None else [best]

    def alive(self) -> frozenset[str] | None:
        """Return candidates that may be asked for again; others are released. None: only those
        under way.
        """
        return None

    def recall(self, events: Iterable[StrategyEvent]) -> None:
        """Restore the state of an earlier strategy from its `events`, in order.

        Raises:
            StrategyError: the events are not those of this strategy on this problem.
        """
        for event in events:
            if event.progress is not None:
                self.tell(event.segment, event.progress)
                continue
            asked = self.ask()
            while asked is WAIT:
                asked = self.ask()
            if asked is None or asked.key != event.segment.key:
                raise StrategyError(
                    f"the search was begun by something else: it asked for {event.segment.key!r}, "
                    f"now for {None if asked is None else asked.key!r}"
                )
