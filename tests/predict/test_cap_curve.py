"""Promises of `cap_curve` and `static_power`: one point and the GPU's figures give the curve."""

from statistics import median

import numpy as np
import pytest

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import gpu_named, known_gpus
from wattloop.predict.cap_curve import (
    GDDR_SHARE,
    HBM_SHARE,
    CurveConstants,
    cap_curve,
    static_power,
)

V100 = gpu_named("v100-pcie-32")
CAPS = np.array([100.0, 125.0, 150.0, 175.0, 200.0, 225.0, 250.0])


def test_the_curve_passes_through_the_measured_point() -> None:
    """At the cap of the measurement the curve equals the measurement."""
    curve = cap_curve([3.0, 5.0, 7.0], [60.0, 150.0, 230.0], [250.0], V100)
    assert curve.step_s[:, 0] == pytest.approx([3.0, 5.0, 7.0])
    assert curve.power_w[:, 0] == pytest.approx([60.0, 150.0, 230.0], rel=1e-3)


def test_an_idle_gpu_does_not_feel_any_cap() -> None:
    """A program that draws static power only has a flat curve."""
    curve = cap_curve(1.0, 36.0, CAPS, V100)
    assert curve.step_s == pytest.approx(np.ones((1, 7)))
    assert curve.power_w == pytest.approx(np.full((1, 7), 36.0), rel=1e-3)


def test_a_busy_gpu_slows_down_more_and_more_under_lower_caps() -> None:
    """Voltage falls first, so the first watts are cheap; power stays within the cap."""
    curve = cap_curve(1.0, 230.0, CAPS, V100)
    slowdown = np.diff(curve.step_s[0])
    assert np.all(slowdown <= 0)
    assert -slowdown[0] > 3 * -slowdown[-1]
    assert np.all(curve.power_w[0] <= CAPS * 1.001)
    assert curve.power_w[0, 0] == pytest.approx(100.0, rel=0.03)
    energy = curve.energy_j[0]
    assert energy.argmin() not in (0, len(CAPS) - 1)


def test_an_uncapped_measurement_at_another_limit_is_taken_as_such() -> None:
    """A point measured under a cap says more about the demand than its watts do."""
    free = cap_curve(1.0, 150.0, [100.0], V100)
    capped = cap_curve(1.0, 150.0, [100.0], V100, at_cap_w=155.0)
    assert capped.step_s[0, 0] > free.step_s[0, 0]


def test_a_higher_cap_than_the_measured_one_is_quicker() -> None:
    """A program limited by its cap gets faster when the cap is raised, and draws more."""
    curve = cap_curve(1.0, 100.0, [100.0, 110.0, 150.0], V100, at_cap_w=100.0)
    assert (curve.step_s[0, :2] > curve.step_s[0, 1:]).all()
    assert (curve.power_w[0, :2] < curve.power_w[0, 1:]).all()


def test_a_program_at_its_cap_is_like_one_a_watt_below() -> None:
    """Demand above the cap is unknown there; the least is assumed, without a jump."""
    curve = cap_curve([1.0, 1.0], [249.0, 250.0], [100.0, 150.0, 200.0], V100)
    np.testing.assert_allclose(curve.step_s[0], curve.step_s[1], rtol=0.02)


def test_a_point_above_its_cap_is_still_met() -> None:
    """At the lowest clock real cards draw more than their cap; the curve begins there."""
    curve = cap_curve(2.0, 117.0, [100.0, 117.0], V100, at_cap_w=100.0)
    assert curve.step_s[0, 1] == pytest.approx(2.0)
    assert curve.power_w[0, 1] == pytest.approx(117.0, rel=0.01)
    assert curve.step_s[0, 0] > 2.0


@pytest.mark.parametrize("wrong", [0.0, -5.0, float("nan")])
def test_nothing_is_predicted_from_no_power(wrong: float) -> None:
    """The error names the field."""
    with pytest.raises(ConfigError, match="power_w must be above 0"):
        cap_curve(1.0, wrong, [100.0], V100)


def test_wrong_points_are_named() -> None:
    """The error names the argument, without an error of numpy."""
    with pytest.raises(ConfigError, match=r"step_s must be above 0, not \[inf\]"):
        cap_curve(float("inf"), 100.0, [100.0], V100)
    with pytest.raises(ConfigError, match="at_cap_w must be above 0"):
        cap_curve(1.0, 100.0, [100.0], V100, at_cap_w=0.0)
    with pytest.raises(ConfigError, match="clock 1530 is relative to the highest"):
        cap_curve(1.0, 100.0, [100.0], V100, clock=1530)
    with pytest.raises(ConfigError, match="step_s has 2 points and power_w 3"):
        cap_curve([1.0, 2.0], [100.0, 110.0, 120.0], [100.0], V100)


def test_a_locked_clock_bounds_the_curve_from_above() -> None:
    """Time is stretched by the part that follows the clock, and power falls."""
    half = CurveConstants(duty=0.0, clock_share=0.5)
    free = cap_curve(1.0, 200.0, [250.0], V100, constants=half)
    locked = cap_curve(1.0, 200.0, [250.0], V100, clock=0.5, constants=half)
    assert locked.step_s[0, 0] == pytest.approx(1.5, rel=0.03)
    assert locked.power_w[0, 0] < free.power_w[0, 0]


def test_static_power_is_published_or_assumed_and_says_which() -> None:
    """GDDR draws more static power than HBM; an unmeasured share is named as assumed."""
    assert static_power(gpu_named("h200")).watts == 80.0
    assumed = static_power(gpu_named("rtx3090"))
    assert assumed.watts == pytest.approx(GDDR_SHARE * 350)
    assert "assumed: 30% of 350 W" in assumed.source
    assert static_power(gpu_named("mi300x")).watts == pytest.approx(HBM_SHARE * 750)


def test_assumed_shares_are_medians_of_the_known() -> None:
    """The table's idle powers over their limits, by kind of memory."""
    for kind, share in (("gddr", GDDR_SHARE), ("hbm", HBM_SHARE)):
        known = {
            (gpu.idle_w, gpu.tdp_w)
            for gpu in known_gpus()
            if gpu.idle_w is not None and gpu.memory_type.startswith(kind)
        }
        assert share == pytest.approx(median(idle / limit for idle, limit in known), abs=0.01)
