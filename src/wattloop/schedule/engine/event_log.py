"""Event log: all events of a simulation in their order."""

import hashlib
from array import array
from collections.abc import Iterator
from copy import deepcopy
from enum import IntEnum
from typing import NamedTuple

PENDING = 2_000


class EventKind(IntEnum):
    """Kinds of events."""

    ARRIVE = 0
    START = 1
    FINISH = 2
    PREEMPT = 3
    RECAP = 4
    NODE_DOWN = 5
    NODE_UP = 6
    REFUSE = 7
    INTERRUPT = 8
    RESIZE = 9


class Event(NamedTuple):
    """Event; `detail` is an option, or the node of a node event, whose job is -1."""

    time_s: float
    what: EventKind
    job: int
    detail: int


class EventLog:
    """Events in arrays.

    Attributes:
        pending: the latest events as tuples; appending here is the fastest way to add one.
    """

    def __init__(self) -> None:
        self.pending: list[tuple[float, int, int, int]] = []
        self._times_s = array("d")
        self._whats = array("b")
        self._jobs = array("q")
        self._details = array("q")

    def add(self, time_s: float, what: int, job: int, detail: int = 0) -> None:
        self.pending.append((time_s, what, job, detail))

    def compact(self, least: int = 1) -> None:
        """Move pending events to the arrays, which take an eighth of the memory."""
        if len(self.pending) < least:
            return
        times_s, whats, jobs, details = zip(*self.pending, strict=True)
        self._times_s.extend(times_s)
        self._whats.extend(whats)
        self._jobs.extend(jobs)
        self._details.extend(details)
        self.pending.clear()

    def __len__(self) -> int:
        return len(self._times_s) + len(self.pending)

    def __iter__(self) -> Iterator[Event]:
        self.compact()
        columns = (self._times_s, self._whats, self._jobs, self._details)
        for time_s, what, job, detail in zip(*columns, strict=True):
            yield Event(time_s, EventKind(what), job, detail)

    def last(self) -> Event | None:
        if not len(self):
            return None
        self.compact()
        last = self._times_s[-1], EventKind(self._whats[-1]), self._jobs[-1], self._details[-1]
        return Event(*last)

    def copy(self) -> "EventLog":
        return deepcopy(self)

    def digest(self) -> str:
        """Hash all events and their times; equal for equal simulations."""
        self.compact()
        found = hashlib.sha256()
        for column in (self._times_s, self._whats, self._jobs, self._details):
            found.update(column.tobytes())
        return found.hexdigest()
