"""Promises of `sampler`: meters are read at their interval, and stopping takes no time."""

import threading
import time

import pytest

from tests.support.scripted_meter import ScriptedMeter, counter
from wattloop.core.clock import RealClock, VirtualClock
from wattloop.core.records import Signal
from wattloop.measure.meter_stream import MeterStream
from wattloop.measure.sampler import (
    DUTY_ALONE,
    DUTY_IN_PROCESS,
    PeriodicTasks,
    Sampler,
    feed_interval_s,
)


def feed_of(*domain_facts: dict[str, float]) -> MeterStream:
    clock = VirtualClock()
    scripts = [(counter(f"d{i}", **facts), lambda t: t) for i, facts in enumerate(domain_facts)]
    return MeterStream(ScriptedMeter(clock, scripts), clock, 0)


def test_cheap_meter_is_read_at_the_requested_interval() -> None:
    """10 Hz and 100 Hz of RAPL are what the user gets."""
    feed = feed_of({"read_cost_s": 2e-6})
    assert feed_interval_s(feed, 0.1, DUTY_IN_PROCESS) == 0.1
    assert feed_interval_s(feed, 0.01, DUTY_IN_PROCESS) == 0.01


def test_sensor_is_not_read_more_often_than_it_changes() -> None:
    """A gauge that updates every 100 ms is not read at 1 kHz."""
    assert feed_interval_s(feed_of({"update_period_s": 0.1}), 0.001, DUTY_ALONE) == 0.1


def test_costly_meter_is_read_less_often_inside_the_users_program() -> None:
    """A read of 4 ms may take 0.4% of the program's time, 3% of a watcher's."""
    feed = feed_of({"read_cost_s": 4e-3})
    assert feed_interval_s(feed, 0.1, DUTY_IN_PROCESS) == pytest.approx(1.0)
    assert feed_interval_s(feed, 0.1, DUTY_ALONE) == pytest.approx(4e-3 / 0.03)


def test_counter_is_read_often_enough_not_to_wrap_unseen() -> None:
    """An hour's interval on a counter that wraps after 260 kJ would lose whole wraps."""
    assert feed_interval_s(feed_of({"wrap_j": 262_143.0}), 3_600.0, DUTY_ALONE) < 70.0
    assert feed_interval_s(feed_of({"wrap_j": 1.0}), 10.0, DUTY_ALONE) == 0.02


def test_stopping_wakes_a_sampler_that_sleeps_for_an_hour() -> None:
    """The end of a run never waits for the interval."""
    clock = RealClock()
    feed = MeterStream(ScriptedMeter(clock, [(counter("a"), lambda t: t)]), clock, 0)
    sampler = Sampler([feed], [], clock, 3_600.0, in_process=True, on_flush=lambda: None)
    before = set(threading.enumerate())
    sampler.start()
    time.sleep(0.05)
    sampler.stop()
    assert set(threading.enumerate()) <= before


def test_meter_that_hangs_is_left_behind() -> None:
    """A driver that never returns does not delay the end of the user's program."""
    clock = RealClock()
    release = threading.Event()

    def hang(t: float) -> float:
        release.wait(10)
        return t

    feed = MeterStream(ScriptedMeter(clock, [(counter("a"), hang)]), clock, 0)
    sampler = Sampler([feed], [], clock, 0.1, in_process=True, on_flush=lambda: None)
    sampler.start()
    assert not sampler.stop(timeout_s=0.1)
    release.set()


def test_internal_error_does_not_end_the_measurement() -> None:
    """A flush that fails is reported, and the next one is tried."""
    clock = RealClock()
    flushes: list[float] = []
    faults: list[Exception] = []
    again = threading.Event()

    def flush() -> None:
        flushes.append(clock.now_s())
        if len(flushes) > 1:
            again.set()
        raise OSError("no more")

    feed = MeterStream(ScriptedMeter(clock, [(counter("a"), lambda t: t)]), clock, 0)
    sampler = Sampler(
        [feed], [], clock, 0.05, in_process=True, on_flush=flush, on_fault=faults.append
    )
    sampler.start()
    assert again.wait(120)
    assert sampler.stop()
    assert "no more" in str(faults[0])


def test_last_readings_are_taken_by_the_thread_or_in_its_place() -> None:
    """The last readings are taken even if the thread never ran."""
    clock = RealClock()
    done: list[str] = []
    for started in (True, False):
        sampler = Sampler([], [], clock, 3_600.0, in_process=True, on_flush=lambda: None)
        if started:
            sampler.start()
        assert sampler.stop(lambda: done.append(threading.current_thread().name))
    assert done == ["wattloop-sampler", threading.current_thread().name]


def test_readings_and_flushes_happen_in_the_background() -> None:
    """Within a second at 50 Hz: tens of readings and at least one flush."""
    clock = RealClock()
    meter = ScriptedMeter(clock, [(counter("a"), lambda t: t)])
    flushed = threading.Event()
    sampler = Sampler(
        [MeterStream(meter, clock, 0)], [], clock, 0.02, in_process=False, on_flush=flushed.set
    )
    sampler.start()
    assert flushed.wait(120)
    sampler.stop()
    assert meter.reads >= 10


def test_stopping_twice_or_before_starting_is_harmless() -> None:
    """Several callers may end it."""
    sampler = Sampler([], [], RealClock(), 0.1, in_process=True, on_flush=lambda: None)
    sampler.stop()
    sampler.start()
    sampler.stop()
    sampler.stop()


def test_counters_are_read_less_often_when_the_thread_takes_too_much_cpu() -> None:
    """On a slow machine the rate falls below the requested 100 Hz for the program's sake, and
    recovers.
    """
    feed = feed_of({"read_cost_s": 2e-6})
    sampler = Sampler([feed], (), RealClock(), 0.01, in_process=True, on_flush=lambda: None)
    (plan,) = sampler._new_plans(0.0)
    assert plan.interval_s == 0.01
    for _ in range(8):
        chores = PeriodicTasks(0.0)
        chores.cpu_s = time.thread_time() - 0.008 * 0.01 / plan.interval_s
        sampler._keep_budget(chores, 1.0)
        sampler._set_interval(plan)
    assert plan.interval_s == pytest.approx(0.02, rel=0.1)  # 0.8% asked for, 0.4% allowed
    for _ in range(8):
        sampler._keep_budget(PeriodicTasks(0.0), 1.0)
    sampler._set_interval(plan)
    assert plan.interval_s == pytest.approx(0.01)


@pytest.mark.parametrize(("cost_s", "reads"), [(0.0, 50), (0.02, 10)])
def test_signals_with_a_listener_are_read_more_often(cost_s: float, reads: int) -> None:
    """Five times a second if they are cheap, and written once a second in any case."""
    clock = VirtualClock()

    def read(_: float) -> float:
        clock.sleep(cost_s)
        return 0.5

    meter = ScriptedMeter(clock, [], signals=[(Signal("gpu:0/utilisation", "fraction"), read)])
    feed = MeterStream(meter, clock, 0)
    heard: list[float] = []
    feed.on_signals = lambda time_s, _: heard.append(time_s)
    sampler = Sampler([], [feed], clock, 0.1, in_process=False, on_flush=lambda: None)
    sampler._followed_cost_s = cost_s
    begin_s = clock.now_s()
    chores = PeriodicTasks(begin_s)
    while (time_s := clock.now_s()) < begin_s + 10:
        if time_s >= chores.due_s:
            sampler._do(chores, time_s)
        clock.sleep(0.01)
    assert len(heard) == pytest.approx(reads, rel=0.25)
    assert len(feed.drained()[2]) == pytest.approx(10, abs=1)
