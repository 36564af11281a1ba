import pytest

from wattloop.accounting.energy_slope import slopes


def test_each_device_has_its_own_slope():
    """Joules per further second, by least squares, grouped by device."""
    found, missing = slopes(
        {
            "A100": [(100, 140_000), (200, 280_000), (300, 420_000)],
            "L40": [(100, 120_500), (200, 240_500), (400, 480_500)],
        }
    )
    assert {s.device: round(s.slope_w) for s in found} == {"A100": 1_400, "L40": 1_200}
    assert found[1].intercept_j == pytest.approx(500)
    assert missing == ()


def test_too_few_runs_are_missing_with_a_reason():
    """A device with two runs, or runs of one length, has no slope."""
    found, missing = slopes({"A": [(1, 2), (2, 3)], "B": [(5, 1), (5, 2), (5, 3)]})
    assert found == ()
    assert [m.name for m in missing] == ["A", "B"]
    assert "same abscissa" in missing[1].reason


def test_the_same_work_under_several_caps_makes_no_slope():
    """Under several caps a longer run used less energy; that slope is not a cost per second."""
    found, missing = slopes({"H200": [(1.0, 700), (1.2, 570), (1.5, 440)]})
    assert found == ()
    assert "not of one setting" in missing[0].reason
