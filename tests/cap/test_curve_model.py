"""Promises of the curve model: readings of one cap share its deviation, but not their noise."""

import math

import numpy as np
import pytest

from wattloop.cap.curve_model import OWN, CapReading, fit_curves, physical_curves

CAPS_W = np.array([100.0, 125.0, 150.0, 175.0, 200.0, 225.0, 250.0])
REFERENCE = CapReading(6, 0.0, math.log(230.0), 0.05)


def low(noise: float, log_time: float = 0.2, log_power: float = math.log(148.0)) -> CapReading:
    return CapReading(2, log_time, log_power, noise)


def test_two_readings_of_a_cap_are_one_of_less_noise():
    """Promise: they count as their mean, with the noise over the square root of two."""
    two = fit_curves(physical_curves(), CAPS_W, [REFERENCE, low(0.05, 0.18), low(0.05, 0.22)])
    one = fit_curves(physical_curves(), CAPS_W, [REFERENCE, low(0.05 / math.sqrt(2), 0.2)])
    assert two.sampled_time == pytest.approx(one.sampled_time)
    assert two.sampled_power == pytest.approx(one.sampled_power)


def test_each_further_reading_makes_its_cap_more_certain():
    """Promise: the power of a cap is known better with each reading of it."""
    doubts = [
        fit_curves(physical_curves(), CAPS_W, [REFERENCE, *([low(0.05)] * times)])
        .sampled_power[:, 2]
        .std()
        for times in (1, 2, 4, 16)
    ]
    assert doubts == sorted(doubts, reverse=True)
    assert doubts[-1] < 0.5 * doubts[0]


def test_no_number_of_readings_tells_how_another_cap_deviates():
    """Promise: a cap's own deviation is common to all its readings and says nothing of other
    caps.
    """
    belief = fit_curves(physical_curves(), CAPS_W, [REFERENCE, *([low(0.05)] * 10_000)])
    around = belief.sampled_power - belief.log_power
    assert around[:, 2].std() < 0.1 * OWN
    assert around[:, 3].std() > 0.9 * OWN
