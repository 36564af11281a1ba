"""Promises of gauge curves: the integral of what a gauge shows, with an honest interval."""

import math
import random

import pytest

from tests.support.power_curves import Constant, PowerCurve, SineWave, SquareWave
from tests.support.scripted_meter import gauge
from wattloop.core.records import Gap
from wattloop.measure.energy_curve import GaugeCurve

CURVES: list[PowerCurve] = [
    Constant(80.0),
    SquareWave(40.0, 160.0, 1.3),
    SineWave(100.0, 50.0, 2.1),
]


@pytest.mark.parametrize("curve", CURVES, ids=["constant", "square", "sine"])
def test_gauge_energy_lies_within_the_stated_interval(curve: PowerCurve) -> None:
    """The integral of sampled power, over random windows, within two sigma."""
    rng = random.Random(3)
    track = GaugeCurve(gauge(update_period_s=0.02))
    for i in range(1_000):
        updated_s = math.floor(i * 0.0213 / 0.02) * 0.02
        track.feed(i * 0.0213, curve.power_w(updated_s))
    inside = 0
    for _ in range(300):
        begin_s = rng.uniform(0.2, 15.0)
        end_s = begin_s + rng.uniform(0.5, 4.0)
        span = track.between(begin_s, end_s)
        assert span is not None
        truth_j = curve.energy_j(end_s) - curve.energy_j(begin_s)
        inside += abs(span.energy_j - truth_j) <= 2 * span.sigma_j
    assert inside >= 285


def test_gauge_bridges_a_short_gap_and_leaves_out_a_long_one() -> None:
    """One lost read is interpolated; ten seconds without are a hole in the coverage."""
    track = GaugeCurve(gauge(update_period_s=0.1))
    for i in range(30):
        track.feed(i * 0.1, 100.0)
    track.gap(3.0, Gap("busy"))
    track.feed(3.2, 100.0)
    short = track.between(1.0, 3.1)
    for i in range(1, 100):
        track.gap(3.2 + i * 0.1, Gap("busy"))
    for i in range(50):
        track.feed(13.2 + i * 0.1, 100.0)
    long = track.between(1.0, 17.0)
    assert short is not None
    assert short.covered == 1.0
    assert short.energy_j == pytest.approx(210.0, rel=0.01)
    assert long is not None
    assert long.covered == pytest.approx(6 / 16, abs=0.02)
    assert long.energy_j == pytest.approx(600.0, rel=0.03)


def test_gauge_that_falls_silent_is_not_extrapolated_for_ever() -> None:
    """After a gap the last power holds for one period, and then the time is uncovered."""
    track = GaugeCurve(gauge(update_period_s=0.1))
    for i in range(30):
        track.feed(i * 0.1, 100.0)
    track.gap(3.0, Gap("busy"))
    span = track.between(0.0, 30.0)
    assert span is not None
    assert span.covered == pytest.approx(0.1, abs=0.01)
    assert span.energy_j < 320.0


def test_averaging_gauge_is_shifted_by_half_its_average() -> None:
    """A mean of the last second describes the power of half a second ago."""
    track = GaugeCurve(gauge(update_period_s=0.1, averaging_s=1.0))
    track.feed(10.0, 100.0)
    assert track.times_s[0] == pytest.approx(10.0 - 0.05 - 0.5)


def test_gauge_read_seldom_states_what_it_may_have_missed() -> None:
    """One reading in ten seconds leaves nine seconds uncertain, whatever the sensor's period."""
    track = GaugeCurve(gauge(update_period_s=0.1))
    track.feed(0.0, 100.0)
    span = track.between(0.0, 10.0)
    assert span is not None
    assert 2 * span.sigma_j > 0.5 * span.energy_j


def test_run_of_days_keeps_few_points_and_all_of_its_energy() -> None:
    """After half an hour idle and then busy, neither the energy nor its interval changes."""
    dense, thin = GaugeCurve(gauge()), GaugeCurve(gauge())
    hour_s = 3_600.0
    for i in range(int(hour_s / 0.1)):
        power_w = 10.0 if i < hour_s / 0.2 else 200.0
        for track in (dense, thin):
            track.feed(i * 0.1, power_w)
        if i % 100 == 0:
            thin.thin_before(i * 0.1)
    assert len(thin.times_s) < 0.6 * len(dense.times_s)
    for begin_s in (0.0, 905.0, hour_s - 60):
        exact, found = dense.between(begin_s, hour_s - 0.1), thin.between(begin_s, hour_s - 0.1)
        assert exact is not None and found is not None
        assert found.energy_j == pytest.approx(exact.energy_j, rel=1e-6)
        assert exact.sigma_j * 0.999 <= found.sigma_j <= exact.sigma_j + 1e-3 * found.energy_j


@pytest.mark.parametrize("length_s", [1e-5, 1e-3, 0.02])
def test_uncertainty_of_a_tiny_window_is_that_of_the_power_around_it(length_s: float) -> None:
    """Both ends have the same error: 10 us are not uncertain by the joules of a period."""
    curve = SquareWave(40.0, 160.0, 1.3)
    track = GaugeCurve(gauge())
    for i in range(200):
        track.feed(i * 0.1, curve.power_w(i * 0.1))
    for begin_s in (0.3, 7.77, 19.9, 20.0):
        span = track.between(begin_s, begin_s + length_s)
        assert span is not None
        assert 0 < 2 * span.sigma_j <= 2.1 * 160.0 * length_s
