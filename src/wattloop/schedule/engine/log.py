"""What happened, event by event: two simulations are the same when these are."""

import hashlib
from array import array
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

__all__ = ["Event", "EventLog", "What"]


class What(IntEnum):
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


class Event(NamedTuple):
    """One event; `detail` is the option of a start or recap; node events have no job (-1)."""

    time_s: float
    what: What
    job: int
    detail: int


class EventLog:
    """Events in the order they happened, in arrays."""

    def __init__(self) -> None:
        self._times_s = array("d")
        self._whats = array("b")
        self._jobs = array("q")
        self._details = array("q")

    def add(self, time_s: float, what: int, job: int, detail: int = 0) -> None:
        """Something happens."""
        self._times_s.append(time_s)
        self._whats.append(what)
        self._jobs.append(job)
        self._details.append(detail)

    def __len__(self) -> int:
        return len(self._times_s)

    def __iter__(self) -> Iterator[Event]:
        columns = (self._times_s, self._whats, self._jobs, self._details)
        for time_s, what, job, detail in zip(*columns, strict=True):
            yield Event(time_s, What(what), job, detail)

    def digest(self) -> str:
        """A hash of all events and their times."""
        found = hashlib.sha256()
        for column in (self._times_s, self._whats, self._jobs, self._details):
            found.update(column.tobytes())
        return found.hexdigest()
