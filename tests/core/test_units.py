"""Promises of `units`: SI inside, and numbers people can read."""

import pytest

from wattloop.core.units import (
    format_change,
    format_duration,
    format_edp,
    format_energy,
    format_mass,
    format_number,
    format_power,
    format_share,
    kwh_from_joules,
    wh_from_joules,
)


def test_conversions() -> None:
    """A kilowatt-hour is 3.6 MJ."""
    assert kwh_from_joules(3.6e6) == 1.0
    assert wh_from_joules(3_600.0) == 1.0


@pytest.mark.parametrize(
    ("joules", "text"),
    [
        (0.0, "0 J"),
        (12.345, "12.3 J"),
        (-5.0, "-5.00 J"),
        (4_560.0, "4.56 kJ (1.27 Wh)"),
        (7.89e6, "7.89 MJ (2.19 kWh)"),
        (2.5e9, "2.50 GJ (694 kWh)"),
        (0.5, "0.5 J"),
        (0.05, "50.0 mJ"),
        (8.17e-4, "0.817 mJ"),
        (-3e-5, "-30.0 µJ"),
        (3e-8, "30.0 nJ"),
    ],
)
def test_energy_for_people(joules: float, text: str) -> None:
    """Three digits, and watt-hours beside kilojoules."""
    assert format_energy(joules) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (2e-5, "20.0 us"),
        (0.0123, "12.3 ms"),
        (4.56, "4.56 s"),
        (59.94, "59.9 s"),
        (185.0, "3 min 05 s"),
        (7_620.0, "2 h 07 min"),
        (0.9997e-3, "1.00 ms"),
        (0.9997, "1.00 s"),
        (59.97, "1 min 00 s"),
    ],
)
def test_duration_for_people(seconds: float, text: str) -> None:
    """The unit fits the length."""
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (20_000.0, 4, "20,000"),
        (-123_456.7, 3, "-123,457"),
        (999_996.0, 5, "999,996"),
        (1234.5, 3, "1,234"),
        (6_117.0, 4, "6,117"),
        (0.123456, 4, "0.1235"),
        (2.0, 5, "2"),
        (1e-05, 4, "1e-05"),
        (3.2e14, 4, "3.2e+14"),
        (float("inf"), 4, "inf"),
    ],
)
def test_numbers_for_people(value: float, digits: int, text: str) -> None:
    """An exponent only where nobody would write the number out."""
    assert format_number(value, digits) == text


def test_large_figures_are_grouped_everywhere() -> None:
    """Beyond the largest unit, thousands have their comma, too."""
    assert format_energy(3.207e12) == "3,207 GJ (890,833 kWh)"
    assert format_edp(3.207e12) == "3,207 GJ s"
    assert format_edp(4_560.0) == "4.56 kJ s"
    assert format_power(2.5e7) == "25,000 kW"


def test_a_spread_that_rounds_to_nothing_is_left_out() -> None:
    assert format_change(10.9, 0.001) == "x 11.9"
    assert format_change(10.9, 0.2) == "x 11.9 ± 0.2"


def test_power_and_mass_for_people() -> None:
    """Kilo from a thousand on."""
    assert (format_power(5.2), format_power(1_400.0)) == ("5.20 W", "1.40 kW")
    assert (format_mass(0.42), format_mass(1_300.0)) == ("0.42 g", "1.30 kg")
    assert (format_mass(0.0081), format_power(0.02)) == ("8.10 mg", "20.0 mW")


@pytest.mark.parametrize(
    ("share", "decimals", "text"),
    [
        (0.125, 1, "12.5%"),
        (0.0, 1, "0.0%"),
        (0.0004, 1, "< 0.1%"),
        (0.0006, 1, "0.1%"),
        (0.004, 0, "< 1%"),
        (1.0, 0, "100%"),
    ],
)
def test_shares_for_people(share: float, decimals: int, text: str) -> None:
    """A part that is there is not rounded to nothing."""
    assert format_share(share, decimals) == text


@pytest.mark.parametrize(
    ("change", "spread", "text"),
    [
        (-0.2, 0.013, "-20.0% ± 1.3%"),
        (0.0002, 0.0, "< ±0.1%"),
        (0.0, 0.0, "+0.0%"),
        (0.0002, 0.013, "+0.0% ± 1.3%"),
        (-0.2, 0.0002, "-20.0% ± < 0.1%"),
        (8.9, 0.0, "+890.0%"),
        (11.34, 0.17, "x 12.3 ± 0.2"),
        (1_233.0, 17.4, "x 1,234 ± 17"),
        (1.2, 512.3, "x 2 ± 512"),
        (1.2, 3e7, "x 2.2, ± more than 1,000,000"),
        (3e9, 2e9, "> x 1,000,000"),
        (float("inf"), float("inf"), "> x 1,000,000"),
    ],
)
def test_change_for_people(change: float, spread: float, text: str) -> None:
    """Per cent while they say something, then how many times as much."""
    assert format_change(change, spread) == text
