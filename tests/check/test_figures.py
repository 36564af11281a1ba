"""Promises of what is compared: sensors only, the same parts, limits in known units."""

import pytest

from wattloop.check.figures import (
    FigureReading,
    Kind,
    added,
    energy_reading,
    format_figure,
    gathered,
    judged_kind,
    limit,
    share,
)
from wattloop.core.errors import ConfigError
from wattloop.core.records import Provenance, Scope
from wattloop.core.results import DomainEnergy, WindowResult


def domain(
    name: str, scope: Scope, joules: float, how: Provenance, device: str = ""
) -> DomainEnergy:
    return DomainEnergy(name, scope, joules, 0.3, how, "somewhere", device=device)


def test_only_what_sensors_read_is_energy() -> None:
    """Promise: an estimate or a model is never part of the joules that are judged."""
    result = WindowResult(
        "x", 0, None, 0.0, 1.0,
        (
            domain("gpu:0", Scope.GPU, 10.0, Provenance.MEASURED, "H200"),
            domain("cpu:0/package", Scope.CPU, 5.0, Provenance.ESTIMATED),
            domain("dram", Scope.DRAM, 1.0, Provenance.MODELLED),
        ),
    )  # fmt: skip
    found = energy_reading(result)
    assert found == FigureReading(10.0, 0.3, "measured", ("gpu:0 (H200)",))
    assert energy_reading(result._replace(domains=result.domains[1:])) is None


def test_what_is_judged_falls_back_in_order() -> None:
    """Promise: joules, else instructions, else CPU time; elapsed time never by itself."""
    assert judged_kind(Kind) is Kind.ENERGY
    assert judged_kind([Kind.TIME, Kind.CPU_TIME, Kind.INSTRUCTIONS]) is Kind.INSTRUCTIONS
    assert judged_kind([Kind.TIME, Kind.CPU_TIME]) is Kind.CPU_TIME
    assert judged_kind([Kind.TIME]) is None


def test_a_kind_that_one_repeat_lacks_is_not_compared() -> None:
    """Promise: a GPU that fell off the bus in one repeat does not make the mean smaller."""
    whole = {
        Kind.ENERGY: FigureReading(9.0, 0.1, "measured", ("a", "b")),
        Kind.CPU_TIME: FigureReading(1.0),
    }
    half = {
        Kind.ENERGY: FigureReading(4.0, 0.1, "measured", ("a",)),
        Kind.CPU_TIME: FigureReading(1.0),
    }
    assert set(gathered([whole, half])) == {Kind.CPU_TIME}
    assert set(gathered([whole, {Kind.CPU_TIME: FigureReading(1.0)}])) == {Kind.CPU_TIME}
    assert gathered([whole, whole])[Kind.ENERGY].values == (9.0, 9.0)
    assert added([whole, whole])[Kind.ENERGY].value == 18.0


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("12 J", Kind.ENERGY, 12.0),
        ("1.5kJ", Kind.ENERGY, 1_500.0),
        ("2 mJ", Kind.ENERGY, 0.002),
        ("2 MJ", Kind.ENERGY, 2e6),
        ("1 Wh", Kind.ENERGY, 3_600.0),
        ("250 ms", Kind.CPU_TIME, 0.25),
        ("2e9 instructions", Kind.INSTRUCTIONS, 2e9),
    ],
)
def test_limits_as_people_write_them(text: str, kind: Kind, value: float) -> None:
    """Promise: the unit says which figure is meant; milli and mega are told apart."""
    found = limit(text)
    assert found.kind is kind
    assert found.value == pytest.approx(value)


@pytest.mark.parametrize("text", ["12", "J", "12 parsec", "-3 J", "", "1.2.3 J", "nan J"])
def test_a_limit_that_is_none_is_refused(text: str) -> None:
    """Promise: a wrong unit or number is said, with what to write."""
    with pytest.raises(ConfigError):
        limit(text)


def test_shares() -> None:
    """Promise: 5% and 0.05 are the same; 5 without a sign is refused as ambiguous."""
    assert share("5%", "x") == share("0.05", "x") == pytest.approx(0.05)
    for wrong in ("5", "-1%", "a lot", "nan"):
        with pytest.raises(ConfigError, match="5%"):
            share(wrong, "--tolerance")


def test_figures_carry_their_unit() -> None:
    """Promise: nobody sees a number without its unit."""
    assert format_figure(Kind.ENERGY, 12.3) == "12.3 J"
    assert format_figure(Kind.INSTRUCTIONS, 2.5e9) == "2.5 Ginstr"
    assert format_figure(Kind.CPU_TIME, 0.25) == "250 ms"
