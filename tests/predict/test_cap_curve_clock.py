"""Promises of `capped`: the clock falls until power fits, and only arithmetic feels it."""

import numpy as np
import pytest

from wattloop.predict.cap_curve import LOWEST_CLOCK, ClockedStep, VoltageCurve, capped_step

FLAT = VoltageCurve(floor=0.7, knee=0.6)
HOT = ClockedStep(compute_s=0.08, memory_s=0.02, static_w=100.0, compute_j=50.0, memory_j=10.0)


def test_without_a_cap_or_below_it_nothing_changes() -> None:
    """A cap above the power of the step has no effect at all."""
    free = capped_step(HOT)
    assert (float(free.clock), float(free.step_s)) == (1.0, pytest.approx(0.1))
    assert float(free.power_w) == pytest.approx(100 + 60 / 0.1)
    assert capped_step(HOT, cap_w=701.0) == free


def test_power_meets_the_cap_and_time_follows_the_clock() -> None:
    """The equation of the module holds at the clock that was found."""
    capped = capped_step(HOT, cap_w=400.0, voltage=FLAT)
    clock = float(capped.clock)
    assert 0.6 < clock < 1.0
    assert float(capped.power_w) == pytest.approx(400.0, rel=1e-3)
    assert float(capped.step_s) == pytest.approx(0.08 / clock + 0.02)
    volt = 0.7 + 0.3 * (clock - 0.6) / 0.4
    expected_w = 100 + (50 * volt**2 + 10) / float(capped.step_s)
    assert float(capped.power_w) == pytest.approx(expected_w)


def test_below_the_knee_energy_per_operation_no_longer_falls() -> None:
    """Voltage is flat there: dynamic energy stays, static energy grows with time."""
    low, lower = (capped_step(HOT, clock=c, voltage=FLAT) for c in (0.55, 0.35))
    dynamic = [float((s.power_w - 100) * s.step_s) for s in (low, lower)]
    assert dynamic[0] == pytest.approx(dynamic[1])
    assert float(lower.power_w * lower.step_s) > float(low.power_w * low.step_s)


def test_memory_bound_work_does_not_feel_the_clock() -> None:
    """Only arithmetic stretches."""
    stream = ClockedStep(compute_s=0.0, memory_s=0.1, static_w=80.0, compute_j=30.0, memory_j=10.0)
    assert float(capped_step(stream, cap_w=400.0).step_s) == pytest.approx(0.1)
    assert float(capped_step(stream, cap_w=400.0).clock) < 1.0


def test_a_slow_host_hides_a_lower_clock() -> None:
    """A launch-bound step takes the host's time until the GPU becomes slower than it."""
    launch = ClockedStep(
        compute_s=0.05, memory_s=0.0, static_w=80.0, compute_j=10.0, host_s=0.1, waiting_s=0.01
    )
    assert float(capped_step(launch, clock=0.6).step_s) == pytest.approx(0.11)
    assert float(capped_step(launch, clock=0.4).step_s) == pytest.approx(0.135)


def test_no_cap_brings_the_clock_below_the_lowest() -> None:
    """There a real card draws more than its cap, and so does this one."""
    capped = capped_step(HOT, cap_w=110.0)
    assert float(capped.clock) == pytest.approx(LOWEST_CLOCK, abs=1e-3)
    assert float(capped.power_w) > 110.0


def test_a_locked_clock_is_a_ceiling_under_a_cap() -> None:
    """The lower of the two applies."""
    assert float(capped_step(HOT, cap_w=690.0, clock=0.7).clock) == pytest.approx(0.7)
    assert float(capped_step(HOT, cap_w=300.0, clock=0.9).power_w) == pytest.approx(300.0, rel=1e-3)


def test_many_placements_at_once_are_each_alone() -> None:
    """Arrays broadcast: workloads in rows, caps in columns, over more than one chunk."""
    draw = np.random.default_rng(3)
    compute_s = draw.uniform(0.01, 0.1, (4_000, 1))
    compute_j = 400 * compute_s
    caps = np.array([200.0, 350.0, 500.0])
    many = ClockedStep(
        compute_s=compute_s, memory_s=0.02, static_w=100.0, compute_j=compute_j, memory_j=4.0
    )
    settled = capped_step(many, cap_w=caps)
    assert settled.clock.shape == (4_000, 3)
    for row, column in ((0, 0), (3_999, 1), (2_000, 2)):
        one = ClockedStep(
            compute_s=float(compute_s[row, 0]),
            memory_s=0.02,
            static_w=100.0,
            compute_j=float(compute_j[row, 0]),
            memory_j=4.0,
        )
        alone = capped_step(one, cap_w=float(caps[column]))
        for whole, single in zip(settled, alone, strict=True):
            assert float(whole[row, column]) == pytest.approx(float(single))
    assert np.all(np.diff(settled.step_s, axis=1) <= 1e-12)
    assert np.all(settled.power_w[settled.clock > LOWEST_CLOCK * 1.01] <= caps.max() * 1.001)


def test_clocks_and_control_draw_less_at_a_lower_clock() -> None:
    """`clocked_w` follows f V^2 for any work."""
    idle = ClockedStep(compute_s=0.0, memory_s=1.0, static_w=40.0, compute_j=0.0, clocked_w=60.0)
    assert float(capped_step(idle).power_w) == pytest.approx(100.0)
    assert float(capped_step(idle, clock=0.5, voltage=FLAT).power_w) == pytest.approx(
        40 + 60 * 0.5 * 0.49
    )
