"""Promises of metrics of energy against time."""

import pytest

from wattloop.accounting.energy_delay import (
    METRICS,
    Point,
    ed2p,
    edp,
    eds,
    energy_gain_pct,
    gain_minus_loss_pct,
    objective,
    time_loss_pct,
)
from wattloop.core.errors import ConfigError

REFERENCE = Point(time_s=100.0, energy_j=20_000.0)
CAPPED = Point(time_s=110.0, energy_j=15_000.0)


def test_products_are_energy_times_powers_of_time():
    """EDP = E t, ED2P = E t^2."""
    assert edp(CAPPED) == pytest.approx(1.65e6)
    assert ed2p(CAPPED) == pytest.approx(1.815e8)
    assert CAPPED.power_w == pytest.approx(136.3636)


@pytest.mark.parametrize("k", [1.01, 1.5, 2.0, 10.0])
def test_eds_is_one_at_the_reference_and_at_k_times_the_time_for_nothing(k):
    """alpha = (k-1)/(k E_ref), beta = 1/(k t_ref)."""
    assert eds(REFERENCE, REFERENCE, k) == pytest.approx(1.0)
    assert eds(Point(k * 100.0, 0.0), REFERENCE, k) == pytest.approx(1.0)


def test_eds_weighs_energy_and_time_by_k():
    """With k = 2 a per cent of each counts the same; with 1.5 time counts twice."""
    assert eds(CAPPED, REFERENCE, 2.0) == pytest.approx(0.5 * 0.75 + 0.5 * 1.10)
    assert eds(CAPPED, REFERENCE, 1.5) == pytest.approx(0.75 / 3 + 1.10 * 2 / 3)


def test_gains_are_against_the_reference():
    """25% less energy for 10% more time is a difference of 15."""
    assert energy_gain_pct(CAPPED, REFERENCE) == pytest.approx(25.0)
    assert time_loss_pct(CAPPED, REFERENCE) == pytest.approx(10.0)
    assert gain_minus_loss_pct(CAPPED, REFERENCE) == pytest.approx(15.0)


@pytest.mark.parametrize("metric", sorted(METRICS))
def test_every_metric_has_an_objective_where_better_is_smaller(metric):
    """A point that is better in both energy and time is smaller (power: in energy alone)."""
    score = objective(metric, REFERENCE)
    better = Point(100.0 if metric == "power" else 90.0, 10_000.0)
    assert score(better) < score(REFERENCE)


def test_a_wrong_metric_or_k_names_the_valid_ones():
    """The message names the existing metrics and the range of k."""
    with pytest.raises(ConfigError, match=r"unknown metric 'epd'; known are energy, time"):
        objective("epd", REFERENCE)
    for k in (1.0, 0.5, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="use a number above 1"):
            objective("eds", REFERENCE, k)
