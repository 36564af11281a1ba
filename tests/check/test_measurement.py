"""Promises of the counters: threads, children and their children count; we ourselves do not.

Processors of virtual machines often have no counter of instructions. The kernel's clock of a task
is an event of the same kind that every Linux has, and what it counts is known: CPU time.
"""

import subprocess
import sys
import threading

import pytest

from wattloop.check.figures import FigureKind
from wattloop.check.measurement import ChildCounters, OwnCounters

TASK_CLOCK = (1, 1)
"""PERF_TYPE_SOFTWARE, PERF_COUNT_SW_TASK_CLOCK: nanoseconds."""
BUSY = "for _ in range({}): pass"


def busy(rounds: int = 1_500_000) -> None:
    for _ in range(rounds):
        pass


def counted(found: dict[FigureKind, object]) -> float:
    if FigureKind.INSTRUCTIONS not in found:
        pytest.skip("this kernel does not let us count the time of a task")
    return found[FigureKind.INSTRUCTIONS].value / 1e9  # type: ignore[attr-defined] # a Reading


def test_children_and_their_children_are_counted_and_we_are_not() -> None:
    """Promise: the count begins with the program's exec and follows what it starts."""
    inner = (
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY.format(10**6)!r}])"
    )
    counters = ChildCounters(TASK_CLOCK)
    busy()
    subprocess.run([sys.executable, "-c", inner], check=True)
    found = counters.end()
    cpu_s = found[FigureKind.CPU_TIME].value
    assert cpu_s > 0.02
    assert counted(found) == pytest.approx(cpu_s, rel=0.15)


def test_threads_that_were_there_before_are_counted() -> None:
    """Promise: a pool of threads made earlier is part of what a block used."""
    go = threading.Event()
    thread = threading.Thread(target=lambda: (go.wait(), busy()))
    thread.start()
    counters = OwnCounters(TASK_CLOCK)
    go.set()
    thread.join()
    found = counters.end()
    assert found[FigureKind.CPU_TIME].value > 0.005
    assert counted(found) == pytest.approx(found[FigureKind.CPU_TIME].value, rel=0.3)


def test_an_event_that_is_not_there_is_said() -> None:
    """Promise: without the counter there is CPU time, no instructions, and a reason."""
    counters = OwnCounters((987_654, 0))
    assert set(counters.end()) == {FigureKind.CPU_TIME}
    assert "cannot be counted" in counters.reason
