"""Promises of meter streams: each reading reaches its energy curve and buffer, from any reader."""

import math
import random
import threading
from collections.abc import Sequence

import pytest

from tests.support.scripted_meter import ScriptedMeter, counter, gauge
from wattloop.core.clock import RealClock, VirtualClock
from wattloop.core.records import Gap, Signal
from wattloop.measure.energy_curve import CounterCurve
from wattloop.measure.meter_stream import MeterStream
from wattloop.meters.base import Reading


def test_readings_go_to_energy_curves_and_gaps_to_nan() -> None:
    """The journal gets every value in order, and NaN for a failed reading."""
    clock = VirtualClock()
    fault: list[Reading] = [1.0, Gap("busy"), 3.0]
    meter = ScriptedMeter(
        clock, [(counter("a"), lambda t: 5.0 * t), (counter("b"), lambda _: fault.pop(0))]
    )
    feed = MeterStream(meter, clock, 0)
    for _ in range(3):
        feed.read()
        clock.advance(1.0)
    times_s, values, _, _ = feed.drained()
    assert list(times_s) == [0.0, 1.0, 2.0]
    assert [None if math.isnan(v) else v for v in values] == [0.0, 1.0, 5.0, None, 10.0, 3.0]
    assert list(feed.drained()[0]) == []


def test_gap_is_reported_once_until_its_reason_changes() -> None:
    """A device that fails ten times a second does not fill the journal with events."""
    clock = VirtualClock()
    reasons = iter(["busy", "busy", "gone", "gone"])
    meter = ScriptedMeter(clock, [(counter("a"), lambda _: Gap(next(reasons)))])
    feed = MeterStream(meter, clock, 0)
    heard: list[str] = []
    feed.on_gap = lambda _time_s, _domain, gap: heard.append(gap.reason)
    for _ in range(4):
        feed.read()
    assert heard == ["busy", "gone"]


def test_gap_that_heals_and_returns_is_reported_again() -> None:
    """Two separate faults are two events."""
    clock = VirtualClock()
    script: list[Reading] = [Gap("busy"), 1.0, Gap("busy")]
    feed = MeterStream(ScriptedMeter(clock, [(counter("a"), lambda _: script.pop(0))]), clock, 0)
    heard: list[str] = []
    feed.on_gap = lambda _time_s, _domain, gap: heard.append(gap.reason)
    for _ in range(3):
        feed.read()
    assert heard == ["busy", "busy"]


def test_signals_are_stored_and_readable() -> None:
    """The last value of each signal is available; a gap is NaN, not an old value."""
    clock = VirtualClock()
    values: list[Reading] = [0.5, Gap("busy")]
    signal = (Signal("gpu:0/utilisation", "fraction"), lambda _: values.pop(0))
    feed = MeterStream(ScriptedMeter(clock, [], signals=[signal]), clock, 0)
    feed.read_signals()
    assert feed.signal_values == {"gpu:0/utilisation": 0.5}
    feed.read_signals()
    assert math.isnan(feed.signal_values["gpu:0/utilisation"])


@pytest.mark.parametrize(
    ("facts", "cheap"),
    [
        ({"read_cost_s": 2e-6}, True),
        ({"read_cost_s": 4e-3}, False),
        ({"update_period_s": 0.1}, False),
    ],
)
def test_windows_read_only_quick_and_cheap_meters_at_their_edges(
    facts: dict[str, float], cheap: bool
) -> None:
    """A counter that costs 4 ms, or changes every 100 ms, is not read at an edge."""
    clock = VirtualClock()
    meter = ScriptedMeter(clock, [(counter("a", **facts), lambda t: t)])
    assert MeterStream(meter, clock, 0).cheap_at_edges is cheap


def test_meter_that_turns_out_costly_is_no_longer_read_at_edges() -> None:
    """The measured duration of its reads overrides the declared cost."""
    clock = VirtualClock()
    meter = ScriptedMeter(clock, [(counter("a"), lambda t: t)], read_takes_s=0.004)
    feed = MeterStream(meter, clock, 0)
    assert feed.cheap_at_edges
    for _ in range(3):
        feed.read()
    assert not feed.cheap_at_edges


def test_many_threads_may_read_one_meter() -> None:
    """Reads never interleave: times and values stay in step."""
    clock = RealClock()
    feed = MeterStream(ScriptedMeter(clock, [(counter("a"), lambda t: t)]), clock, 0)
    threads = [threading.Thread(target=lambda: [feed.read() for _ in range(300)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    times_s, values, _, _ = feed.drained()
    # A delayed reading is repeated, and both are recorded.
    assert len(times_s) == len(values) >= 1_200
    assert list(values) == sorted(values)


def test_update_period_of_a_slow_sensor_is_found() -> None:
    """Watching for two changes shows when the sensor updates."""
    clock = VirtualClock(start_s=0.003)
    meter = ScriptedMeter(
        clock,
        [(gauge("gpu:0", read_cost_s=1e-4), lambda t: 100.0 + math.floor((t - 0.033) / 0.1))],
    )
    feed = MeterStream(meter, clock, 0)
    feed.find_ticks(0.5, clock.sleep)
    ticks = feed.tick_clocks[0]
    assert ticks is not None
    age_s, _ = ticks.age(1.053)
    assert age_s == pytest.approx(0.02, abs=0.003)


def test_samples_wait_and_are_added_in_order() -> None:
    """A reading at the edge of a window costs little, and is in the curve when it is needed."""
    clock = VirtualClock()
    feed = MeterStream(ScriptedMeter(clock, [(counter("a"), lambda t: 5.0 * t)]), clock, 0)
    for _ in range(3):
        feed.sample()
        clock.advance(1.0)
    track = feed.tracks[0]
    assert not track.times_s
    span = feed.between(0, 0.0, 2.0)
    assert span is not None
    assert span.energy_j == pytest.approx(10.0, rel=0.01)
    assert list(feed.drained()[0]) == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("nonsense", [[], [1.0, 2.0], [math.nan], [math.inf], ["x"], None])
def test_meter_that_breaks_its_contract_is_a_gap_with_a_reason(nonsense: object) -> None:
    """A plug-in may return the wrong number of values, or no numbers; only this check notices."""

    class Plugin(ScriptedMeter):
        def read(self) -> list[Reading]:
            return nonsense  # type: ignore[return-value]  # that is the point

        def read_signals(self) -> list[Reading]:
            return nonsense  # type: ignore[return-value]  # that is the point

    clock = VirtualClock()
    script = (counter("a", update_period_s=0.1), lambda t: t)
    signal = (Signal("a/clock", "MHz"), lambda t: t)
    feed = MeterStream(Plugin(clock, [script], signals=[signal]), clock, 0)
    feed.find_ticks(0.3, clock.sleep)
    feed.read()
    feed.read_signals()
    track = feed.tracks[0]
    assert track.last_gap is not None
    assert "scripted" in track.last_gap[1]
    assert math.isnan(feed.signal_values["a/clock"])
    assert len(feed.drained()[3]) == 1


def test_readings_of_another_process_are_sorted_in() -> None:
    """Each is in its place by time, in the curve and in the journal."""
    clock = VirtualClock()
    feed = MeterStream(ScriptedMeter(clock, [(counter("a"), lambda t: 5.0 * t)]), clock, 0)
    feed.read()
    clock.advance(2.0)
    feed.sample()
    with feed.lock:
        for time_s in (0.5, 1.0, 2.5):
            feed.arrive(time_s, [5.0 * time_s])
    span = feed.between(0, 0.0, 2.5)
    assert span is not None
    assert span.energy_j == pytest.approx(12.5, rel=0.01)
    assert list(feed.drained()[0]) == [0.0, 0.5, 1.0, 2.0, 2.5]


def test_readings_of_uncertain_order_are_left_out() -> None:
    """Two processes take timestamps themselves: a counter must not run backwards for a
    millisecond.
    """
    clock = VirtualClock()
    feed = MeterStream(ScriptedMeter(clock, [(counter("a"), lambda t: 5.0 * t)]), clock, 0)
    feed.read()
    clock.advance(1.0)
    feed.sample()
    with feed.lock:
        feed.arrive(0.999, [5.01])
        feed.arrive(1.001, [4.99])
        feed.arrive(0.4, [2.0])  # later than it was taken, and before the newest reading
    feed.between(0, 0.0, 1.0)
    track = feed.tracks[0]
    assert isinstance(track, CounterCurve)
    assert not track.resets
    assert list(feed.drained()[0]) == [0.0, 1.0]


def test_delayed_reading_is_left_out_where_other_processes_read_too() -> None:
    """Its timestamp may be off by the duration of the read."""
    clock = VirtualClock()
    meter = ScriptedMeter(clock, [(counter("a"), lambda t: t)])
    feed = MeterStream(meter, clock, 0)
    feed.widest_s = 0.002
    feed.read()
    meter._read_takes_s = 0.5
    clock.advance(1.0)
    feed.sample()
    meter._read_takes_s = 0.0
    clock.advance(1.0)
    feed.read()
    assert list(feed.drained()[0]) == [0.0, 2.5]


class HeldUpMeter(ScriptedMeter):
    """A cheap counter whose reader sometimes waits for a processor, before or after the read."""

    def __init__(self, clock: VirtualClock, power_w: float, rng: random.Random) -> None:
        self._time, self._rng = clock, rng
        domain = counter("a", update_period_s=0.001, resolution=61e-6)
        super().__init__(clock, [(domain, lambda t: math.floor(t / 0.001) * 0.001 * power_w)])

    def read(self) -> Sequence[Reading]:
        waits_s = self._rng.uniform(0.002, 0.012) if self._rng.random() < 0.03 else 0.0
        before = self._rng.random() < 0.3
        self._time.advance(10e-6 + (waits_s if before else 0.0))
        values = super().read()
        self._time.advance(10e-6 + (0.0 if before else waits_s))
        return values


def test_ten_thousand_windows_a_second_add_up_to_the_whole() -> None:
    """A reader that waits during a read has an uncertain timestamp, and the interval includes that.

    Half of the time of such a program is spent in readings, so half of its waits are in them.
    """
    power_w, inside_whole, inside_sum = 250.0, 0, 0
    for seed in range(40):
        clock, rng = VirtualClock(5.0), random.Random(seed)
        feed = MeterStream(HeldUpMeter(clock, power_w, rng), clock, 0)
        feed.read()
        begin_s, windows = clock.now_s(), []
        while clock.now_s() < begin_s + 0.5:
            feed.sample_at_edge()
            from_s = clock.now_s()
            clock.advance(rng.uniform(1e-6, 100e-6))
            windows.append((from_s, clock.now_s()))
            feed.sample_at_edge()
        end_s = clock.now_s()
        clock.advance(20e-6)
        feed.read()
        whole = feed.between(0, begin_s, end_s)
        parts = [feed.between(0, *window) for window in windows]
        assert whole is not None
        inside_whole += abs(whole.energy_j - power_w * (end_s - begin_s)) <= 2 * whole.sigma_j
        sum_j = sum(part.energy_j for part in parts if part is not None)
        sigma_j = math.hypot(*(part.sigma_j for part in parts if part is not None))
        truth_j = power_w * sum(end - begin for begin, end in windows)
        inside_sum += abs(sum_j - truth_j) <= 2 * sigma_j
    assert inside_whole >= 38
    assert inside_sum >= 38
