"""CPU seconds and instructions from the kernel, for machines without sensors."""

import os
import resource
import time
from contextlib import suppress

from wattloop.check.figures import FigureReading, Kind
from wattloop.hardware.perf_event import PerfCounter

HARDWARE, INSTRUCTIONS = 0, 1
"""PERF_TYPE_HARDWARE, PERF_COUNT_HW_INSTRUCTIONS."""
DISABLED, INHERIT, PINNED = 1 << 0, 1 << 1, 1 << 2
EXCLUDE_KERNEL, EXCLUDE_HYPERVISOR, ENABLE_ON_EXEC = 1 << 5, 1 << 6, 1 << 12
USER_CODE = INHERIT | PINNED | EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR
"""Only the program's own code, which a plain user may count. Pinned: it counts all the time or
not at all, never a part that would have to be scaled."""


class ChildCounters:
    """Use of programs that were started, and have ended, since this was made."""

    def __init__(self, event: tuple[int, int] = (HARDWARE, INSTRUCTIONS)) -> None:
        # Off in this process, and on in a child from its exec on.
        flags = USER_CODE | DISABLED | ENABLE_ON_EXEC
        self._counters, self.reason = _opened([0], event, flags)
        self._begin_s = _children_s()

    def end(self) -> dict[Kind, FigureReading]:
        found = {Kind.CPU_TIME: FigureReading(_children_s() - self._begin_s)}
        return {**found, **_counted(self._counters)}


class OwnCounters:
    """Use of this process since this was made, with threads and ended children."""

    def __init__(self, event: tuple[int, int] = (HARDWARE, INSTRUCTIONS)) -> None:
        # A counter follows one thread and those it starts later, so each of ours gets one.
        self._counters, self.reason = _opened(_threads(), event, USER_CODE)
        self._begin_s = time.process_time() + _children_s()

    def end(self) -> dict[Kind, FigureReading]:
        used_s = time.process_time() + _children_s() - self._begin_s
        return {Kind.CPU_TIME: FigureReading(used_s), **_counted(self._counters)}


def _opened(
    threads: list[int], event: tuple[int, int], flags: int
) -> tuple[list[PerfCounter], str]:
    """A counter for each thread, or none and why."""
    counters = []
    try:
        for thread in threads:
            with suppress(ProcessLookupError):  # it has just ended
                counters.append(PerfCounter(*event, cpu=-1, pid=thread, flags=flags))
    except OSError as error:
        for counter in counters:
            counter.close()
        return [], f"instructions cannot be counted here ({error.strerror or error})"
    return counters, ""


def _counted(counters: list[PerfCounter]) -> dict[Kind, FigureReading]:
    if not counters:
        return {}
    try:
        total = sum(counter.read() for counter in counters)
    except OSError:  # another program uses the processor's counter
        return {}
    finally:
        for counter in counters:
            counter.close()
        counters.clear()
    return {Kind.INSTRUCTIONS: FigureReading(float(total))} if total else {}


def _threads() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc/self/task")]  # noqa: PTH208 - names only
    except OSError:
        return [0]


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
