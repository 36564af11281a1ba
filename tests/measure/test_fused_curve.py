"""Promises of fused curves: the counter fixes the total, and the gauge gives the shape."""

import math
import random

import pytest

from tests.support.power_curves import PowerCurve, SineWave, Spikes, SquareWave
from tests.support.scripted_meter import counter, gauge
from wattloop.core.records import Gap
from wattloop.measure.energy_curve import CounterCurve, GaugeCurve
from wattloop.measure.meter_stream import FusedCurve

CURVE: PowerCurve = SquareWave(100.0, 500.0, 1.0)


def shaped(
    *,
    seconds: float = 20.0,
    gauge_factor: float = 1.0,
    counter_every_s: float = 2.0,
    curve: PowerCurve = CURVE,
) -> FusedCurve:
    """Return a GPU whose counter is read every 2 s and whose power every 20 ms."""
    slow = CounterCurve(counter("gpu:0", update_period_s=0.02, resolution=0.001))
    quick = GaugeCurve(gauge("gpu:0", update_period_s=0.02))
    for i in range(int(seconds / 0.02)):
        time_s = i * 0.02
        updated_s = math.floor(time_s / 0.02 + 1e-9) * 0.02
        quick.feed(time_s + 0.01, curve.power_w(updated_s) * gauge_factor)
        if i % round(counter_every_s / 0.02) == 0:
            slow.feed(time_s + 0.01, curve.energy_j(updated_s))
    return FusedCurve(slow, quick)


def test_window_inside_one_counter_step_follows_the_gauge() -> None:
    """Half a second of high power is not spread over the two seconds between counter reads."""
    track = shaped()
    span = track.between(5.05, 5.45)
    plain = track.counter.between(5.05, 5.45)
    assert span is not None
    assert plain is not None
    truth_j = CURVE.energy_j(5.45) - CURVE.energy_j(5.05)
    assert span.energy_j == pytest.approx(truth_j, rel=0.05)
    assert abs(plain.energy_j - truth_j) > 0.2 * truth_j


@pytest.mark.parametrize("factor", [0.9, 1.0, 1.1])
def test_total_is_the_counters_whatever_the_gauge_says(factor: float) -> None:
    """A gauge that reads 10% off changes nothing over many counter steps."""
    span = shaped(gauge_factor=factor).between(2.0, 16.0)
    assert span is not None
    truth_j = CURVE.energy_j(16.0) - CURVE.energy_j(2.0)
    assert span.energy_j == pytest.approx(truth_j, rel=0.01)


@pytest.mark.parametrize(
    "curve",
    [
        CURVE,
        SquareWave(100.0, 500.0, 0.1),
        SineWave(300.0, 200.0, 1.3),
        Spikes(100, 600, 1.71, 0.05),
    ],
    ids=["square", "quick square", "sine", "spikes"],
)
def test_truth_lies_within_the_stated_interval(curve: PowerCurve) -> None:
    """Random windows, two sigma, at least 95%."""
    track = shaped(curve=curve, counter_every_s=0.5)
    rng = random.Random(5)
    inside = 0
    for _ in range(300):
        begin_s = rng.uniform(0.5, 14.0)
        end_s = begin_s + rng.uniform(0.1, 4.0)
        span = track.between(begin_s, end_s)
        assert span is not None
        truth_j = curve.energy_j(end_s) - curve.energy_j(begin_s)
        inside += abs(span.energy_j - truth_j) <= 2 * span.sigma_j
    assert inside >= 285


def test_gauge_is_scaled_to_the_counter_inside_a_segment() -> None:
    """A gauge that reads 20% low causes no error, not even between two counter readings."""
    span = shaped(gauge_factor=0.8).between(4.2, 5.8)
    assert span is not None
    truth_j = CURVE.energy_j(5.8) - CURVE.energy_j(4.2)
    assert span.energy_j == pytest.approx(truth_j, rel=0.03)


def test_after_the_last_counter_reading_the_gauge_continues() -> None:
    """Until the next counter reading, the newest seconds come from the gauge."""
    track = shaped(seconds=19.9)
    span = track.between(18.5, 19.5)
    assert span is not None
    truth_j = CURVE.energy_j(19.5) - CURVE.energy_j(18.5)
    assert span.energy_j == pytest.approx(truth_j, rel=0.1)
    assert span.sigma_j > 0


def test_counter_alone_before_the_gauge_was_read() -> None:
    """Without a single gauge reading the counter's own answer is given."""
    slow = CounterCurve(counter("gpu:0"))
    for i in range(10):
        slow.feed(i * 1.0, 50.0 * i)
    track = FusedCurve(slow, GaugeCurve(gauge("gpu:0")))
    assert track.between(2.0, 5.0) == slow.between(2.0, 5.0)


def test_nothing_read_gives_no_energy() -> None:
    """The energy is None, never 0 J."""
    track = FusedCurve(CounterCurve(counter("gpu:0")), GaugeCurve(gauge("gpu:0")))
    assert track.between(0.0, 1.0) is None


def test_lost_device_covers_only_the_time_before() -> None:
    """A GPU lost at 15 s covers half of a window from 10 s to 20 s."""
    track = shaped(seconds=15.0)
    lost = Gap("GPU is lost", lost=True)
    track.counter.gap(15.0, lost)
    track.gauge.gap(15.0, lost)
    span = track.between(10.0, 20.0)
    assert span is not None
    assert span.covered == pytest.approx(0.5, abs=0.01)
    assert span.energy_j == pytest.approx(CURVE.energy_j(15.0) - CURVE.energy_j(10.0), rel=0.03)


def test_a_card_whose_sensors_both_fail_is_not_guessed() -> None:
    """After two seconds of read errors the time is uncovered, as for a lost device."""
    track = shaped(seconds=15.0)
    for i in range(150, 250):
        track.counter.gap(i * 0.1, Gap("unknown error"))
        track.gauge.gap(i * 0.1, Gap("unknown error"))
    span = track.between(5.0, 25.0)
    assert span is not None
    assert span.covered == pytest.approx(0.5, abs=0.01)


def test_card_that_was_away_for_an_hour_leaves_a_hole() -> None:
    """Its counter restarts at 0: the hour is reported as unread, and not guessed."""
    joined = FusedCurve(CounterCurve(counter(update_period_s=0.1)), GaugeCurve(gauge()))
    for since_s in (0.0, 3_610.0):
        for i in range(100):
            joined.counter.feed(since_s + i * 0.1, 10.0 * i)
            joined.gauge.feed(since_s + i * 0.1, 100.0)
        joined.counter.gap(since_s + 10.0, Gap("fallen off the bus", lost=True))
        joined.gauge.gap(since_s + 10.0, Gap("fallen off the bus", lost=True))
    span = joined.between(0.0, 3_619.9)
    assert span is not None
    assert span.energy_j == pytest.approx(2 * 100.0 * 9.9, rel=0.02)
    assert span.covered == pytest.approx(19.8 / 3_619.9, rel=0.02)
