"""Promises of amounts: units are understood, and an invalid amount is refused with a remedy."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from wattloop.schedule.yaml_model import bytes_per_second, not_negative, number, seconds, watts


@pytest.mark.parametrize(
    ("read", "written", "meant"),
    [
        (watts, "4500 W", 4_500),
        (watts, "4.5kW", 4_500),
        (watts, "1 MW", 1e6),
        (watts, "1e3", 1_000),
        (watts, 7, 7),
        (bytes_per_second, "25 GB/s", 25e9),
        (bytes_per_second, "200 Gbit/s", 25e9),
        (bytes_per_second, "200 Gb/s", 25e9),
        (bytes_per_second, "25e9", 25e9),
        (seconds, "1.5 min", 90),
        (seconds, "30 d", 30 * 86_400),
        (seconds, "10h", 36_000),
        (number, "1e-3", 1e-3),
        (number, "10%", 0.1),
    ],
)
def test_units_are_understood(read: Callable[[Any], Any], written: Any, meant: float) -> None:
    """They become SI units."""
    assert read(written) == pytest.approx(meant)


@pytest.mark.parametrize("read", [watts, bytes_per_second, seconds, number])
@pytest.mark.parametrize("written", ["", "x", "5 parsec", "1.2.3", "nan", "inf", "- 5", True])
def test_an_invalid_amount_is_refused(read: Callable[[Any], Any], written: Any) -> None:
    """An invalid amount never counts as zero."""
    with pytest.raises(ValueError, match=r"is not a"):
        read(written)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, True, "3", None, [1]])
def test_a_number_of_0_or_more_is_just_that(value: Any) -> None:
    """The message says what to write."""
    assert not_negative(0, "watts") == 0.0
    with pytest.raises(ValueError, match=r"write watts, not"):
        not_negative(value, "watts")
