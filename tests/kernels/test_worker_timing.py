"""Promises of timing: a series of runs becomes one time."""

import math
import random

import pytest

from wattloop.core.clock import VirtualClock
from wattloop.kernels.worker import MIN_BATCHES, burst_s, median_interval, time_runs


class Work:
    """Work that takes a known time when it is waited for, as on a GPU."""

    def __init__(self, clock: VirtualClock, run_s: float, first_s: float = 0.0) -> None:
        self.clock, self.run_s, self.pending_s = clock, run_s, first_s
        self.runs = self.waits = 0

    def run(self) -> None:
        self.runs += 1
        self.pending_s += self.run_s

    def synchronise(self) -> None:
        self.waits += 1
        self.clock.advance(self.pending_s)
        self.pending_s = 0.0


@pytest.mark.parametrize("run_s", [1e-5, 1e-3, 0.02, 0.7])
def test_the_time_of_a_run_is_right(run_s: float) -> None:
    """Short and long runs alike; the first run, which compiles, does not count."""
    clock = VirtualClock()
    work = Work(clock, run_s, first_s=3.0)
    timing = time_runs(work, 1.0, now_s=clock.now_s)
    assert timing.time_s == pytest.approx(run_s)
    assert timing.duration_s >= 1.0 or timing.runs == MIN_BATCHES
    assert timing.duration_s == pytest.approx(timing.runs * run_s)
    assert len(timing.batch_s) >= MIN_BATCHES


def test_waiting_is_paid_per_batch() -> None:
    """To keep a GPU busy there are far fewer waits than runs; on request one per run."""
    clock = VirtualClock()
    work = Work(clock, 1e-4)
    time_runs(work, 0.5, now_s=clock.now_s)
    assert work.waits < work.runs / 50
    each = Work(clock, 1e-2)
    time_runs(each, 0.5, now_s=clock.now_s, each_waits=True)
    assert each.waits >= each.runs


def test_a_clock_that_stands_still_ends() -> None:
    """Runs that take no time do not run for ever."""
    clock = VirtualClock()
    ticks = iter(range(10**9))
    work = Work(clock, 0.0)
    timing = time_runs(work, 0.05, now_s=lambda: next(ticks) * 1e-3, warmup_s=0.01)
    assert timing.runs > 0


def test_interval_covers_the_median() -> None:
    """At least 95 of 100 intervals contain the true median, for any distribution."""
    source = random.Random(1)
    held = 0
    for _ in range(1_000):
        low, high = median_interval([source.lognormvariate(0, 1) for _ in range(21)])
        held += low <= 1.0 <= high
    assert held >= 950 - 3 * math.sqrt(1_000 * 0.05 * 0.95)


def test_batches_are_long_enough_without_warm_up() -> None:
    """A slow first run (compiling, or disturbed by another process) does not make tiny batches."""
    clock = VirtualClock()
    timing = time_runs(Work(clock, 1e-6, first_s=0.02), 1.0, now_s=clock.now_s, warmup_s=0.0)
    assert timing.duration_s / len(timing.batch_s) > 0.02


def test_a_million_values_are_quick() -> None:
    """The interval of many values is narrow, and computed at once."""
    low, high = median_interval([float(n) for n in range(1_000_001)])
    assert low < 500_000 < high
    assert high - low == pytest.approx(1.96 * 1_000, rel=0.01)


def test_few_values_give_their_extremes() -> None:
    """Five values cannot promise 95%, so all are shown; more values give an order statistic."""
    assert median_interval([3.0, 1.0, 2.0, 5.0, 4.0]) == (1.0, 5.0)
    # 20 values: the 6th and the 15th hold the median with 95.9%
    assert median_interval([float(n) for n in range(1, 21)]) == (6.0, 15.0)


class Throttled(Work):
    """Work whose runs take twice the time once it has been busy for 50 ms without a pause."""

    def run(self) -> None:
        now_s = self.clock.now_s()
        if now_s - getattr(self, "last_s", -1.0) > 0.5:
            self.busy_since_s = now_s
        self.last_s = now_s
        slow = now_s - self.busy_since_s > 0.05
        self.pending_s += self.run_s * (2 if slow else 1)


def test_bursts_are_over_before_the_power_limit_takes_hold() -> None:
    """The speed of the first moment and the sustained speed are separate results."""
    clock = VirtualClock()
    work = Throttled(clock, 1e-3)
    assert burst_s(work, now_s=clock.now_s, sleep=clock.sleep) == pytest.approx(1e-3)
    assert time_runs(work, 1.0, now_s=clock.now_s, each_waits=True).time_s == pytest.approx(2e-3)


def test_counters_are_of_the_measured_runs_only() -> None:
    """Promise: neither the first run nor the warm-up is counted."""
    clock = VirtualClock()
    work = Work(clock, 0.01, first_s=3.0)
    timing = time_runs(
        work, 1.0, now_s=clock.now_s, read_counts=lambda: {"instructions": 5.0 * work.runs}
    )
    assert timing.counts == {"instructions": 5.0 * timing.runs}
    assert work.runs > timing.runs
