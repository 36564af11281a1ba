"""Promises of curves for drawing: they show watts, peaks and gaps."""

import math
from array import array

import pytest

from wattloop.store.samples import (
    Curve,
    binned,
    coarser,
    pack_curve,
    series_of,
    unpack_curve,
    watts,
)


def test_a_counter_becomes_watts_across_a_wrap() -> None:
    """A wrap adds its range; a reset (unknown range) is a gap, never a negative power."""
    times_s, raw = array("d", [0.0, 1.0, 2.0]), array("d", [90.0, 95.0, 0.0])
    assert list(watts(times_s, raw, counter=True, wrap_j=100.0))[1:] == [5.0, 5.0]
    assert math.isnan(watts(times_s, raw, counter=True)[2])
    assert math.isnan(watts(times_s, raw, counter=True)[0])


def test_a_gap_in_which_a_counter_can_have_wrapped_more_than_once_has_no_power() -> None:
    """After ten minutes without a reading 40, 140 or 240 J were used, and no power is drawn."""
    times_s, raw = array("d", [0.0, 600.0, 601.0]), array("d", [90.0, 30.0, 35.0])
    found = watts(times_s, raw, counter=True, wrap_j=100.0, highest_w=50.0)
    assert math.isnan(found[1])
    assert found[2] == 5.0
    assert watts(times_s, raw, counter=True, wrap_j=100.0, highest_w=0.2)[1] == 40.0 / 600.0
    domain = {"name": "cpu:0", "kind": "counter", "wrap_j": 100.0}
    (series,) = series_of([{"domains": [{**domain, "max_power_w": 50.0}]}])
    assert list(series.watts(times_s, raw))[2:] == [5.0]
    assert math.isnan(series.watts(times_s, raw)[1])
    (unstated,) = series_of([{"domains": [domain]}])
    assert math.isnan(unstated.watts(times_s, raw)[1])


def test_two_readings_at_one_moment_have_no_power() -> None:
    """Equal times give a gap, not a division by zero or an endless loop."""
    times_s, raw = array("d", [1.0, 1.0]), array("d", [5.0, 6.0])
    assert math.isnan(watts(times_s, raw, counter=True)[1])
    assert len(binned(times_s, raw, 1.0)) == 1


def test_a_spike_survives_every_level() -> None:
    """The highest value of a day is still there in the one-minute curve."""
    times_s = array("d", [i / 10 for i in range(6_000)])
    values = array("d", [100.0] * 6_000)
    values[3_333] = 900.0
    minute = coarser(coarser(binned(times_s, values, 1), 10), 60)
    assert len(minute) == 10
    assert max(minute.highest) == 900.0
    assert minute.lowest[5] == 100.0
    assert minute.mean[5] == pytest.approx(100.0 + 800.0 / 600)


def test_gaps_are_left_out_of_means_and_empty_bins_stay_gaps() -> None:
    """Missing is not zero."""
    curve = binned([0.1, 0.2, 1.1, 5.5], [math.nan, 4.0, math.nan, 6.0], 1)
    assert list(curve.times_s) == [0.5, 1.5, 5.5]
    assert curve.mean[0] == 4.0
    assert math.isnan(curve.mean[1])


def test_packed_curves_come_back_within_their_stated_precision() -> None:
    """16 bits of the range; gaps and holes in time survive."""
    curve = Curve(10)
    for number in (3, 4, 90):
        curve.add((number + 0.5) * 10, number * 1.0, number * 2.0, number * 7.0)
    curve.add(9_005.0, math.nan, math.nan, math.nan)
    back = unpack_curve(pack_curve(curve))
    assert back.times_s == curve.times_s
    assert list(back.highest)[:3] == pytest.approx(list(curve.highest)[:3], abs=630 / 65_000)
    assert math.isnan(back.mean[3])
    assert len(unpack_curve(pack_curve(Curve(1)))) == 0


def test_equal_values_are_packed_though_their_mean_is_off_by_a_bit() -> None:
    """The mean of 29.2, 29.2, ... is 29.199999999999996, below the lowest; the run is still
    stored.
    """
    curve = Curve(10.0)
    curve.add(5.0, 29.2, 29.200000000000163, 29.20000000000057)
    curve.add(15.0, 29.2, 29.199999999999996, 29.2)
    assert list(unpack_curve(pack_curve(curve)).mean) == pytest.approx([29.2, 29.2])
