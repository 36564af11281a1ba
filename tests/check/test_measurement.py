"""Promises of the counters: threads, children and their children count; Wattloop itself does not.

Processors of virtual machines often have no counter of instructions. The kernel's clock of a task
is an event of the same kind that every Linux has, and its count is known: CPU time.
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


def test_children_and_their_children_are_counted_without_wattloop() -> None:
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


def test_earlier_threads_are_counted() -> None:
    """Promise: a pool of threads that was created earlier is part of the block's use."""
    go = threading.Event()
    thread = threading.Thread(target=lambda: (go.wait(), busy()))
    thread.start()
    counters = OwnCounters(TASK_CLOCK)
    go.set()
    thread.join()
    found = counters.end()
    assert found[FigureKind.CPU_TIME].value > 0.005
    assert counted(found) == pytest.approx(found[FigureKind.CPU_TIME].value, rel=0.3)


def test_a_missing_event_is_reported() -> None:
    """Promise: without the counter there is CPU time, and instructions are missing with a
    reason.
    """
    counters = OwnCounters((987_654, 0))
    assert set(counters.end()) == {FigureKind.CPU_TIME}
    assert "cannot be counted" in counters.reason
