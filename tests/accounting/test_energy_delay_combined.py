"""Promises of `accounting.metrics`: the formulas of the thesis's second chapter."""

from wattloop.accounting.energy_delay import Point, dcie, e2dp, objective, swap


def test_metrics_of_the_thesis_second_chapter() -> None:
    """E2DP weighs energy twice; DCiE is the inverse of the PUE; SWaP is eq. 2.3."""
    point = Point(time_s=2.0, energy_j=10.0)
    assert e2dp(point) == 200.0
    assert objective("e2dp", point)(point) == 200.0
    assert dcie(1.25) == 0.8
    assert swap(600.0, power_w=300.0, space=2.0) == 1.0
