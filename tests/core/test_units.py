"""Promises of `units`: SI inside, and numbers that people can read."""

import pytest

from wattloop.core.units import (
    energy_range,
    format_change,
    format_duration,
    format_edp,
    format_energy,
    format_error,
    format_mass,
    format_money,
    format_number,
    format_power,
    format_share,
    kwh_from_joules,
    short_energy,
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
        (1_430.0, "1.43 kJ (0.397 Wh)"),
        (4_560.0, "1.27 Wh (4.56 kJ)"),
        (-4_560.0, "-1.27 Wh (-4.56 kJ)"),
        (7.89e6, "2.19 kWh (7.89 MJ)"),
        (2.5e9, "694 kWh (2.50 GJ)"),
        (2.5e10, "6.94 MWh (25.0 GJ)"),
        (0.24, "0.240 J"),
        (0.05, "50.0 mJ"),
        (8.17e-4, "0.817 mJ"),
        (-3e-5, "-30.0 µJ"),
        (3e-8, "30.0 nJ"),
    ],
)
def test_energy_for_people(joules: float, text: str) -> None:
    """Three digits; watt-hours from the first one on, with joules in addition."""
    assert format_energy(joules) == text
    assert short_energy(joules) == text.partition(" (")[0]


def test_energies_next_to_each_other_have_one_unit() -> None:
    """A part is in joules where the whole is, else in watt-hours, and an interval has one unit."""
    assert short_energy(136.8, 4_560.0) == "0.0380 Wh"
    assert short_energy(136.8, 1_430.0) == "0.137 kJ"
    assert short_energy(3_700.0, 3_500.0) == "3.70 kJ"
    assert short_energy(23.7, 1_430.0) == "23.7 J"
    assert short_energy(1.87e-4, 7.06e-5) == "187 µJ"
    assert short_energy(4_560.0, 7.89e6) == "1.27 Wh"
    assert energy_range(3_240.0, 5_040.0) == "0.900 to 1.40 Wh"
    assert energy_range(3_240.0, 5_040.0, 3_500.0) == "3.24 to 5.04 kJ"


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (1_234.5, "1,234.50"),
        (0.0996, "0.10"),
        (0.042, "0.042"),
        (0.0012, "0.0012"),
        (1.7e-6, "< 0.001"),
        (-1.7e-6, "> -0.001"),
        (-3.0, "-3.00"),
        (0.0, "0.00"),
    ],
)
def test_money_for_people(amount: float, text: str) -> None:
    """Cents, two digits of smaller amounts, and never an exponent or a rounded zero."""
    assert format_money(amount) == text


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
    """An exponent appears only where the digits would not be readable."""
    assert format_number(value, digits) == text


def test_large_figures_are_grouped_everywhere() -> None:
    """Thousands beyond the largest unit have their comma, too."""
    assert format_energy(3.207e12) == "891 MWh (3,207 GJ)"
    assert format_edp(3.207e12) == "3,207 GJ s"
    assert format_edp(4_560.0) == "4.56 kJ s"
    assert format_power(2.5e7) == "25,000 kW"


def test_a_spread_that_rounds_to_nothing_is_left_out() -> None:
    assert format_change(10.9, 0.001) == "x 11.9"
    assert format_change(10.9, 0.2) == "x 11.9 ± 0.2"


def test_power_and_mass_for_people() -> None:
    """Kilo from a thousand on."""
    assert (format_power(5.2), format_power(1_400.0)) == ("5.20 W", "1.40 kW")
    assert (format_mass(0.42), format_mass(1_300.0)) == ("0.420 g", "1.30 kg")
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
    """A small share is not rounded to zero."""
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
    """Percent for small changes, and a factor for large ones."""
    assert format_change(change, spread) == text


def test_errors_for_people() -> None:
    """The same digits in every relative uncertainty."""
    assert [format_error(*each) for each in ((3.0, 1_000.0), (69.4, -100.0), (1.0, 0.0))] == [
        "0.3%",
        "69%",
        "?",
    ]
