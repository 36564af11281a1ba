"""Promises of the physical family of curves."""

import numpy as np

from wattloop.cap.curve_model import physical_curves


def test_power_grows_and_time_falls_with_the_cap():
    """Promise: every curve of the family is monotone, whatever its parameters."""
    family = physical_curves(300)
    assert (np.diff(family.log_power, axis=1) >= -1e-9).all()
    assert (np.diff(family.log_time, axis=1) <= 1e-9).all()


def test_a_cap_above_the_demand_does_nothing():
    """Promise: at the highest cap nearly every curve runs at full speed."""
    family = physical_curves(300)
    assert np.median(family.log_time[:, -1]) < 1e-6


def test_some_cards_draw_more_than_a_low_cap():
    """Promise: caps are not hard limits in the family."""
    family = physical_curves(300)
    above = family.log_power[:, 0] > family.log_caps[0] + np.log(1.1)
    assert above.any()


def test_curves_are_repeatable():
    """Promise: repeated calls give the same curves."""
    first = physical_curves(200, seed=5)
    physical_curves.cache_clear()
    assert (physical_curves(200, seed=5).log_time == first.log_time).all()
