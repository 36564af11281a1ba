"""What every strategy keeps: ask for a segment, tell what came of it, until nothing is asked.

strategy = Race(problem)
while (segment := strategy.ask()) is not None:
    if segment is WAIT: ...           # only where several segments are under way at once
    strategy.tell(segment, run(segment))
strategy.best()

A strategy reads no clock, touches no device, and draws random numbers from the problem's seed
only:
what it was told decides what it asks. So a search is resumed by telling a new strategy what the
store remembers.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal

from wattloop.control.lever import Setting
from wattloop.core.errors import StrategyError
from wattloop.tune.problem import Problem
from wattloop.tune.progress import Progress
from wattloop.tune.segment import Segment, Value


class _Wait(Enum):
    WAIT = "wait"


WAIT: Final = _Wait.WAIT


"""Nothing to ask before more was told."""


Asked = Segment | Literal[_Wait.WAIT] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The best configuration as far as known.

    Attributes:
        candidate: its name in this search.
        parameters, levers, learning_rate: how to train it.
        why: for people, one sentence.
    """

    candidate: str
    parameters: Mapping[str, Value]
    levers: Mapping[str, Setting] = field(default_factory=dict)
    learning_rate: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class StrategyEvent:
    """Something a strategy did before: it asked for a segment, or was told of one."""

    segment: Segment
    progress: Progress | None = None


class Strategy(ABC):
    """Decides what is trained next."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @abstractmethod
    def ask(self) -> Asked:
        """The next segment, `WAIT`, or None when the search is over. Each is asked for once."""

    @abstractmethod
    def tell(self, segment: Segment, progress: Progress) -> None:
        """What came of a segment that was asked for."""

    @abstractmethod
    def best(self) -> Chosen | None:
        """The configuration to use; None as long as none was good enough."""

    def front(self) -> list[Chosen]:
        """Of several objectives: those that no other beats in all of them."""
        best = self.best()
        return [] if best is None else [best]

    def alive(self) -> frozenset[str] | None:
        """Candidates that may be asked for again; others are let go. None: only those under way."""
        return None

    def recall(self, events: Iterable[StrategyEvent]) -> None:
        """Go on where an earlier one was: `events` in the order in which they happened.

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
