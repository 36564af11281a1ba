"""Promises of counter curves: whatever a counter does, its energy is right or marked."""

import math
import random

import pytest

from tests.support.power_curves import Constant, PowerCurve, SineWave, SquareWave
from tests.support.scripted_meter import counter, gauge
from wattloop.core.records import Gap
from wattloop.measure.energy_curve import CounterCurve, GaugeCurve, UpdateClock

CURVES: list[PowerCurve] = [
    Constant(80.0),
    SquareWave(40.0, 160.0, 1.3),
    SineWave(100.0, 50.0, 2.1),
]


def fed_counter(
    curve: PowerCurve,
    *,
    seconds: float = 20.0,
    interval_s: float = 0.1,
    wrap_j: float | None = None,
    period_s: float = 0.001,
    rng: random.Random | None = None,
) -> CounterCurve:
    """Return a counter that updates every `period_s` and is read every `interval_s`, with
    jitter.
    """
    rng = rng or random.Random(1)
    track = CounterCurve(counter(wrap_j=wrap_j, update_period_s=period_s, resolution=61e-6))
    time_s = 0.0
    while time_s < seconds:
        updated_s = math.floor(time_s / period_s) * period_s
        raw_j = curve.energy_j(updated_s)
        track.feed(time_s, raw_j % wrap_j if wrap_j else raw_j)
        time_s += interval_s * rng.uniform(0.9, 1.1)
    return track


@pytest.mark.parametrize("curve", CURVES, ids=["constant", "square", "sine"])
@pytest.mark.parametrize("wrap_j", [None, 97.0])
def test_counter_energy_lies_within_the_stated_interval(
    curve: PowerCurve, wrap_j: float | None
) -> None:
    """Over random windows the truth lies within two sigma, wrapping counters included."""
    rng = random.Random(7)
    track = fed_counter(curve, wrap_j=wrap_j, rng=rng)
    inside = 0
    for _ in range(300):
        begin_s = rng.uniform(0.2, 15.0)
        end_s = begin_s + rng.uniform(0.3, 4.0)
        span = track.between(begin_s, end_s)
        assert span is not None
        truth_j = curve.energy_j(end_s) - curve.energy_j(begin_s)
        inside += abs(span.energy_j - truth_j) <= 2 * span.sigma_j
    assert inside >= 285


def test_every_wrap_is_counted_and_none_is_a_reset() -> None:
    """80 W through a counter of 97 J for 20 s wraps 16 times and loses nothing."""
    track = fed_counter(Constant(80.0), wrap_j=97.0)
    span = track.between(0.0, 19.0)
    assert span is not None
    assert track.wraps == 16
    assert not track.resets
    assert span.energy_j == pytest.approx(80.0 * 19.0, rel=1e-3)


def test_fall_of_a_counter_without_a_range_is_a_reset_not_minus_energy() -> None:
    """A driver reload sets the counter to 0: energy continues at the earlier power, less
    certainly.
    """
    track = CounterCurve(counter())
    for i in range(20):
        track.feed(i * 0.1, 1000.0 + 5.0 * i)
    calm = track.between(0.5, 1.5)
    track.feed(2.0, 0.0)
    for i in range(1, 20):
        track.feed(2.0 + i * 0.1, 5.0 * i)
    span = track.between(0.5, 3.5)
    assert calm is not None
    assert span is not None
    assert [after_s for _, after_s in track.resets] == [2.0]
    assert span.energy_j == pytest.approx(50.0 * 3.0, rel=0.02)
    assert span.sigma_j > 5 * calm.sigma_j


def test_fall_after_two_points_at_almost_the_same_time() -> None:
    """Promise: a guess never exceeds the highest plausible power of the device."""
    domain = counter(update_period_s=0.1, max_power_w=1_000.0)
    ticks = UpdateClock(0.1)
    track = CounterCurve(domain, ticks)
    track.feed(10.0, 1000.0)  # taken at 9.95: the middle of what is possible
    ticks.saw_change(9.9499, 9.9521)  # now the phase is known: the next point is 1 ms later
    track.feed(10.03, 1070.0)
    track.feed(10.13, 1068.0)
    span = track.between(9.95, 10.13)
    assert span is not None
    assert track.resets
    assert span.energy_j <= 70.0 + 1_000.0 * 0.2


def test_fall_that_a_wrap_cannot_explain_is_a_reset() -> None:
    """A wrap that would need more than 100 kW is not assumed."""
    track = CounterCurve(counter(wrap_j=262_143.0))
    for i in range(20):
        track.feed(i * 0.1, 200_000.0 + 5.0 * i)
    track.feed(2.0, 3.0)
    assert track.wraps == 0
    assert [after_s for _, after_s in track.resets] == [2.0]
    assert track.last_total_j == pytest.approx(100.0, rel=0.01)


def test_counter_counts_through_a_gap() -> None:
    """Failed reads lose no energy of a counter: the next good one includes it."""
    track = CounterCurve(counter())
    for i in range(10):
        track.feed(i * 0.1, 8.0 * i)
    track.gap(1.0, Gap("permission denied"))
    assert track.last_gap == (1.0, "permission denied")
    track.feed(3.0, 240.0)
    span = track.between(0.1, 2.9)
    assert span is not None
    assert track.last_gap is None
    assert span.energy_j == pytest.approx(80.0 * 2.8, rel=0.02)
    assert span.covered == 1.0


def test_lost_device_covers_only_the_time_until_it_was_lost() -> None:
    """A GPU that fell off the bus half-way is not extrapolated."""
    track = CounterCurve(counter())
    for i in range(11):
        track.feed(i * 0.1, 10.0 * i)
    track.gap(1.1, Gap("fallen off the bus", lost=True))
    span = track.between(0.0, 2.0)
    assert span is not None
    assert span.covered == pytest.approx(0.5, abs=0.01)
    assert span.energy_j == pytest.approx(100.0, rel=0.02)


@pytest.mark.parametrize("kind", [CounterCurve, GaugeCurve])
@pytest.mark.parametrize("value", [10.0, 11.0], ids=["unchanged", "changed"])
def test_device_that_comes_back_is_no_longer_lost(
    kind: type[CounterCurve] | type[GaugeCurve], value: float
) -> None:
    """The first good reading after a loss withdraws it, even one that shows the old value."""
    track = kind(counter() if kind is CounterCurve else gauge())
    track.feed(0.0, 10.0)
    track.gap(0.1, Gap("permission denied", lost=True))
    assert track.lost is not None
    track.feed(0.2, value)
    assert track.lost is None
    assert track.last_gap is None


def test_counter_that_fails_for_long_is_not_extrapolated() -> None:
    """Garbage from the 40th second on: 60 s of 100 s are uncovered, not guessed."""
    track = CounterCurve(counter())
    for i in range(400):
        track.feed(i * 0.1, 5.0 * i)
    for i in range(400, 1000):
        track.gap(i * 0.1, Gap("no number"))
    span = track.between(0.0, 100.0)
    assert span is not None
    assert span.covered == pytest.approx(0.4, abs=0.01)
    assert span.energy_j == pytest.approx(2_000.0, rel=0.01)
    track.feed(100.1, 5_005.0)
    whole = track.between(0.0, 100.0)
    assert whole is not None and whole.covered == 1.0
    assert whole.energy_j == pytest.approx(5_000.0, rel=0.01)


def test_stuck_counter_has_not_moved() -> None:
    """A counter that never moves is reported as such, and not read as 0 J."""
    track = CounterCurve(counter())
    for i in range(50):
        track.feed(i * 0.1, 12_345.0)
    span = track.between(1.0, 4.0)
    assert span is not None
    assert span.moved is False


def test_counter_that_stops_moving_is_stuck_for_later_windows() -> None:
    """A counter that froze earlier does not pass as moving now."""
    track = CounterCurve(counter())
    for i in range(10):
        track.feed(i * 0.1, 8.0 * i)
    for i in range(10, 60):
        track.feed(i * 0.1, 72.0)
    late = track.between(3.0, 5.0)
    assert late is not None
    assert late.moved is False


def test_window_after_the_last_reading_continues_at_its_power_less_certainly() -> None:
    """Before its next reading is due, a live counter is not taken for a stuck one."""
    track = CounterCurve(counter())
    for i in range(20):
        track.feed(i * 0.1, 8.0 * i)
    span = track.between(2.2, 2.7)
    assert span is not None
    assert span.moved
    assert span.energy_j == pytest.approx(40.0, rel=0.05)
    assert span.sigma_j > 5.0


def test_counter_whose_reads_fail_is_not_carried_on() -> None:
    """After a failed read no energy is assumed for later windows."""
    track = CounterCurve(counter())
    for i in range(20):
        track.feed(i * 0.1, 8.0 * i)
    track.gap(2.0, Gap("busy"))
    span = track.between(2.2, 2.7)
    assert span is not None
    assert not span.moved


def test_counter_unread_for_minutes_is_not_carried_on() -> None:
    """A meter that hangs does not give energy without limit."""
    track = CounterCurve(counter())
    for i in range(20):
        track.feed(i * 0.1, 8.0 * i)
    span = track.between(10.0, 200.0)
    assert span is not None
    assert not span.moved


def test_no_reading_gives_no_energy() -> None:
    """Without a reading the energy is None, never 0 J."""
    assert CounterCurve(counter()).between(0.0, 1.0) is None
    assert GaugeCurve(gauge()).between(0.0, 1.0) is None


def test_age_of_a_slow_counter_widens_short_windows() -> None:
    """A counter that updates every 100 ms is uncertain by about a period times power."""
    quick = fed_counter(Constant(100.0), period_s=0.001)
    slow = fed_counter(Constant(100.0), period_s=0.1)
    quick_span, slow_span = quick.between(5.0, 5.5), slow.between(5.0, 5.5)
    assert quick_span is not None
    assert slow_span is not None
    assert slow_span.sigma_j > 5 * quick_span.sigma_j
    assert slow_span.sigma_j < 100.0 * 0.1


def test_period_longer_than_declared_is_learned_from_unchanged_readings() -> None:
    """A sensor that declares 1 ms but changes every 60 ms is detected."""
    track = CounterCurve(counter(update_period_s=0.001))
    for i in range(2_000):
        time_s = i * 0.005
        track.feed(time_s, 100.0 * (math.floor(time_s / 0.06) * 0.06))
    assert 0.04 <= track.period_s <= 0.07


def test_known_ticks_place_points_at_the_update() -> None:
    """With a known period, a point lies where the sensor updated, not where it was read."""
    ticks = UpdateClock(0.1)
    ticks.saw_change(0.0499, 0.0501)
    track = CounterCurve(counter(update_period_s=0.1), ticks)
    track.feed(0.08, 1.0)
    track.feed(0.19, 2.0)
    assert track.times_s[0] == pytest.approx(0.05, abs=1e-3)
    assert track.times_s[1] == pytest.approx(0.15, abs=1e-3)


def test_points_of_the_curve_never_go_back_in_time() -> None:
    """Readings with the same or an earlier time keep the curve a function of time."""
    track = CounterCurve(counter())
    for time_s, raw_j in [(1.0, 1.0), (1.0, 2.0), (0.9, 3.0), (1.1, 4.0)]:
        track.feed(time_s, raw_j)
    assert all(a < b for a, b in zip(track.times_s, list(track.times_s)[1:], strict=False))
    assert track.last_total_j == 3.0


def test_run_of_days_keeps_few_points_and_all_of_its_energy() -> None:
    """After half an hour idle and then busy, neither the total nor the recent energy changes."""
    track = CounterCurve(counter())
    raw_j, hour_s = 0.0, 3_600.0
    points = 0
    for i in range(int(hour_s / 0.1)):
        raw_j += 0.1 * (10.0 if i < hour_s / 0.2 else 200.0)
        track.feed(i * 0.1, raw_j)
        if i % 100 == 0:
            track.thin_before(i * 0.1)
        points = max(points, len(track.times_s))
    end_s = hour_s - 0.1
    assert points < 0.6 * hour_s / 0.1
    whole, recent = track.between(0.0, end_s), track.between(end_s - 60, end_s)
    middle = track.between(905.0, end_s)
    assert whole is not None and middle is not None and recent is not None
    assert whole.energy_j == pytest.approx(raw_j - 1.0, abs=3 * whole.sigma_j + 0.1)
    assert whole.sigma_j < 1e-3 * whole.energy_j
    assert middle.energy_j == pytest.approx(raw_j - 9_050.0, rel=1e-3)
    assert recent.energy_j == pytest.approx(12_000.0, rel=1e-3)


@pytest.mark.parametrize("length_s", [1e-5, 1e-3, 0.02])
def test_uncertainty_of_a_tiny_window_is_that_of_the_power_around_it(length_s: float) -> None:
    """Both ends have the same error: 10 us are not uncertain by the joules of a period."""
    track = fed_counter(SquareWave(40.0, 160.0, 1.3), period_s=0.05)
    for begin_s in (0.3, 7.77, 19.9, 20.0):
        span = track.between(begin_s, begin_s + length_s)
        assert span is not None
        assert 0 < 2 * span.sigma_j <= 4 * 160.0 * length_s
        assert 0 < span.energy_j <= 2 * 160.0 * length_s


def test_counter_that_restarts_after_a_long_loss_leaves_a_hole() -> None:
    """A GPU returns after an hour and counts from 0: the energy of the hour is not guessed."""
    track = CounterCurve(counter(wrap_j=None))
    for i in range(100):
        track.feed(i * 0.1, 1_000.0 + 5.0 * i)
    for i in range(10):
        track.gap(10.0 + i, Gap("fallen off the bus", lost=True))
    for i in range(100):
        track.feed(3_610.0 + i * 0.1, 5.0 * i)
    span = track.between(0.0, 3_619.9)
    assert span is not None
    assert span.energy_j == pytest.approx(2 * 50.0 * 9.9, rel=0.01)
    assert span.covered == pytest.approx(19.8 / 3_619.9, rel=0.01)


def test_a_computed_share_that_stands_still_used_nothing() -> None:
    """The energy that no job used of a GPU ends where a job takes it, and is not extended."""
    track = CounterCurve(counter(update_period_s=1e-6, resolution=0.0))
    for step in range(41):
        time_s = step / 2
        track.feed(time_s, 50.0 * (min(time_s, 5.0) + max(0.0, time_s - 15.0)))
    for begin_s, end_s, energy_j in ((0.0, 9.25, 250.0), (6.0, 14.0, 0.0), (0.0, 20.0, 500.0)):
        span = track.between(begin_s, end_s)
        assert span is not None
        assert span.energy_j == pytest.approx(energy_j, abs=1e-3)
        assert span.moved


@pytest.mark.parametrize("gap_s", [3.0, 7.3, 40.0, 600.0, 7_200.0])
@pytest.mark.parametrize("gap_share", [0.3, 1.0, 1.4], ids=["idles", "goes on", "works more"])
def test_gap_in_which_the_counter_can_wrap_is_modelled_with_its_uncertainty(
    gap_s: float, gap_share: float
) -> None:
    """A stopped process reads nothing, so the number of wraps is unknown."""
    power_w, wrap_j = 80.0, 97.0
    track = CounterCurve(counter(wrap_j=wrap_j, max_power_w=300.0))
    energy_j = 0.0
    for i in range(200):
        track.feed(i * 0.1, energy_j % wrap_j)
        energy_j += power_w * 0.1
    energy_j += gap_share * power_w * gap_s - power_w * 0.1
    after_s = 19.9 + gap_s
    for i in range(50):
        track.feed(after_s + i * 0.1, energy_j % wrap_j)
        energy_j += power_w * 0.1
    span = track.between(0.0, after_s + 4.9)
    assert span is not None
    truth_j = power_w * (19.9 + 4.9) + gap_share * power_w * gap_s
    assert abs(span.energy_j - truth_j) <= 2 * span.sigma_j
    unread_s, wraps = track.unseen_wraps(0.0, after_s + 4.9)
    assert unread_s == pytest.approx(gap_s)
    assert wraps >= 1
    assert track.unseen_wraps(0.0, 19.0) == (0.0, 0)


def test_gap_too_short_to_wrap_is_exact() -> None:
    """A counter of 262 kJ needs 87 s at 3 kW: a stop of a minute loses no energy and gives no
    note.
    """
    track = CounterCurve(counter(wrap_j=262_143.0, max_power_w=3_000.0))
    for i in range(20):
        track.feed(i * 0.1, 10.0 * i)
    track.feed(61.9, 10.0 * 619)
    span = track.between(0.0, 61.9)
    assert span is not None
    assert span.energy_j == pytest.approx(6_190.0, abs=1.0)
    assert track.unseen_wraps(0.0, 61.9) == (0.0, 0)


def test_gap_without_any_power_before_it_is_missing() -> None:
    """A single reading gives no model: the time is left out."""
    track = CounterCurve(counter(wrap_j=97.0, max_power_w=300.0))
    track.feed(0.0, 5.0)
    for i in range(20):
        track.feed(10.0 + i * 0.1, 8.0 + i)
    span = track.between(0.0, 11.9)
    assert span is not None
    assert span.covered == pytest.approx(1.9 / 11.9, abs=0.01)
    assert span.energy_j == pytest.approx(19.0, abs=1.0)


def test_counter_with_the_same_value_after_a_gap_may_have_wrapped() -> None:
    """At 100 W, after a multiple of the wrap time the value is the same: that is not 0 J."""
    track = CounterCurve(counter(wrap_j=100.0, max_power_w=300.0))
    for i in range(100):
        track.feed(i * 0.1, (10.0 * i) % 100.0)
    track.feed(9.9 + 5.0, 90.0)
    span = track.between(9.9, 14.9)
    assert span is not None
    assert abs(span.energy_j - 500.0) <= 2 * span.sigma_j
    assert track.unseen_wraps(9.9, 14.9)[1] >= 1


def test_many_bridged_gaps_take_little_memory_and_keep_their_sum() -> None:
    """A process is stopped and continued for weeks: memory is bounded, and the sum includes all."""
    track = CounterCurve(counter(wrap_j=97.0, max_power_w=300.0))
    time_s = energy_j = 0.0
    for i in range(2_000):
        step_s = 4.0 if i % 4 == 3 else 0.1
        time_s, energy_j = time_s + step_s, energy_j + 80.0 * step_s
        track.feed(time_s, energy_j % 97.0)
    assert len(track.bridges) <= 100
    assert track.unseen_wraps(0.0, time_s)[0] == pytest.approx(500 * 4.0)
