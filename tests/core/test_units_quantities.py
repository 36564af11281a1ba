"""Promises of quantities: one text means one amount, in every place where a user writes it."""

from collections.abc import Callable

import pytest

from wattloop.check.figures import parse_limit
from wattloop.control.daemon.rules import parse_amount
from wattloop.core.errors import ConfigError
from wattloop.core.units import Dimension, quantity
from wattloop.schedule.yaml_model import bytes_per_second, seconds, watts
from wattloop.tune.spec_sections import joules


def energy_limit(text: str) -> float:
    return parse_limit(text).value


@pytest.mark.parametrize(
    ("text", "energy_j"),
    [
        ("5 mJ", 0.005),
        ("5 MJ", 5e6),
        ("3 mWh", 10.8),
        ("3 MWh", 10.8e9),
        ("20kJ", 20e3),
        ("1.5 KWH", 5.4e6),
        ("7 \u00b5J", 7e-6),
        ("2_000 J", 2_000),
        (".5e3 j", 500),
    ],
)
@pytest.mark.parametrize("read", [joules, energy_limit])
def test_an_energy_is_the_same_in_tune_and_check(
    read: Callable[[str], float], text: str, energy_j: float
) -> None:
    """Promise: `5 mJ` is 0.005 J as a budget of a search and as a limit of a check."""
    assert read(text) == pytest.approx(energy_j, rel=1e-12)


@pytest.mark.parametrize(
    ("read", "text", "told"),
    [
        (joules, "5 mj", r"mJ \(0.001 J\) or MJ \(1,000,000 J\)"),
        (parse_limit, "5 mj", r"mJ \(0.001 J\) or MJ \(1,000,000 J\)"),
        (parse_limit, "5 mwh", r"mWh \(3.6 J\) or MWh \(3,600,000,000 J\)"),
        (watts, "2 mw", r"mW \(0.001 W\) or MW \(1,000,000 W\)"),
        (parse_amount, "2 mw", r"mW \(0.001 W\) or MW"),
        (bytes_per_second, "25 gb/s", "GB/s .* or Gb/s"),
    ],
)
def test_a_unit_that_could_be_two_is_refused(
    read: Callable[[str], object], text: str, told: str
) -> None:
    """Promise: a factor of a billion is not guessed; the message names both meanings."""
    with pytest.raises((ValueError, ConfigError), match=told):
        read(text)


@pytest.mark.parametrize(("text", "time_s"), [("250 ms", 0.25), ("3 M", 180), ("2 H", 7_200)])
def test_case_is_free_where_a_unit_has_one_meaning(text: str, time_s: float) -> None:
    """Promise: `2 H` and `2 h` are the same."""
    assert seconds(text) == time_s


def test_decimals_stay_exact() -> None:
    """Promise: 70% is 0.7, not 0.7000000000000001."""
    assert quantity("70%", Dimension.SHARE, what="a share").value == 0.7
