import random

from wattloop.integrations.step_timeline import ClockMap


def test_true_time_lies_within_the_stated_half_width_under_drift() -> None:
    """Promise: under any bounds, the true host time lies within the stated interval."""
    chance = random.Random(1)
    clocks = ClockMap()
    rate = 30e-6
    for i in range(20_000):
        device_s = i * 0.012
        true_s = 50.0 + device_s * (1 + rate)
        tight = i % 500 == 0
        after_s = true_s - (5e-6 if tight else chance.uniform(0, 0.05))
        by_s = true_s + (5e-6 if tight else chance.uniform(0, 0.012))
        time_s, half_s = clocks.observe(device_s, after_s, by_s)
        assert abs(time_s - true_s) <= half_s + 1e-9
        if i > 2_000:
            assert half_s < 50e-6
    assert abs(clocks.rate - rate) < 1e-6


def test_loose_bounds_alone_keep_the_error_below_them() -> None:
    """Promise: a loop that is never idle still maps its clocks by the tightest bounds."""
    clocks = ClockMap()
    clocks.observe(0.0, 10.0, 10.00001)
    worst_s = 0.0
    for i in range(1, 50_000):
        device_s = i * 0.012
        true_s = 10.0 + device_s * (1 - 4.5e-6)
        time_s, half_s = clocks.observe(device_s, true_s - 0.1, true_s + 0.002)
        assert abs(time_s - true_s) <= half_s + 1e-9
        worst_s = max(worst_s, abs(time_s - true_s))
    assert worst_s < 0.03


def test_contradiction_restarts_the_mapping() -> None:
    """Promise: after a suspend the old mapping is dropped, so that it does not shift later
    edges.
    """
    clocks = ClockMap()
    clocks.observe(0.0, 10.0, 10.00001)
    time_s, half_s = clocks.observe(1.0, 31.0, 31.001)
    assert abs(time_s - 31.0005) < 1e-9
    assert half_s < 0.001
