"""Promises of compared figures: sensors only, the same parts, limits in known units."""

import pytest

from wattloop.check.figures import (
    FigureKind,
    FigureReading,
    add_figures,
    collect_series,
    energy_reading,
    format_figure,
    judged_kind,
    parse_limit,
    parse_share,
)
from wattloop.core.errors import ConfigError
from wattloop.core.records import Provenance, Scope
from wattloop.core.results import DomainEnergy, WindowResult


def domain(
    name: str, scope: Scope, joules: float, how: Provenance, device: str = ""
) -> DomainEnergy:
    return DomainEnergy(name, scope, joules, 0.3, how, "somewhere", device=device)


def test_only_what_sensors_read_is_energy() -> None:
    """Promise: an estimate or a model is never part of the judged joules."""
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


def test_the_judged_figure_falls_back_in_order() -> None:
    """Promise: joules, else instructions, else CPU time; never elapsed time by itself."""
    assert judged_kind(FigureKind) is FigureKind.ENERGY
    assert (
        judged_kind([FigureKind.TIME, FigureKind.CPU_TIME, FigureKind.INSTRUCTIONS])
        is FigureKind.INSTRUCTIONS
    )
    assert judged_kind([FigureKind.TIME, FigureKind.CPU_TIME]) is FigureKind.CPU_TIME
    assert judged_kind([FigureKind.TIME]) is None


def test_a_kind_that_one_repeat_lacks_is_not_compared() -> None:
    """Promise: a GPU that fell off the bus in one repeat does not make the mean smaller."""
    whole = {
        FigureKind.ENERGY: FigureReading(9.0, 0.1, "measured", ("a", "b")),
        FigureKind.CPU_TIME: FigureReading(1.0),
    }
    half = {
        FigureKind.ENERGY: FigureReading(4.0, 0.1, "measured", ("a",)),
        FigureKind.CPU_TIME: FigureReading(1.0),
    }
    assert set(collect_series([whole, half])) == {FigureKind.CPU_TIME}
    assert set(collect_series([whole, {FigureKind.CPU_TIME: FigureReading(1.0)}])) == {
        FigureKind.CPU_TIME
    }
    assert collect_series([whole, whole])[FigureKind.ENERGY].values == (9.0, 9.0)
    assert add_figures([whole, whole])[FigureKind.ENERGY].value == 18.0


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("12 J", FigureKind.ENERGY, 12.0),
        ("1.5kJ", FigureKind.ENERGY, 1_500.0),
        ("2 mJ", FigureKind.ENERGY, 0.002),
        ("2 MJ", FigureKind.ENERGY, 2e6),
        ("1 Wh", FigureKind.ENERGY, 3_600.0),
        ("250 ms", FigureKind.CPU_TIME, 0.25),
        ("2e9 instructions", FigureKind.INSTRUCTIONS, 2e9),
    ],
)
def test_limits_in_all_notations(text: str, kind: FigureKind, value: float) -> None:
    """Promise: the unit determines the figure, and milli differs from mega."""
    found = parse_limit(text)
    assert found.kind is kind
    assert found.value == pytest.approx(value)


@pytest.mark.parametrize("text", ["12", "J", "12 parsec", "-3 J", "", "1.2.3 J", "nan J"])
def test_an_invalid_limit_is_refused(text: str) -> None:
    """Promise: the error for a wrong unit or number shows the right form."""
    with pytest.raises(ConfigError):
        parse_limit(text)


def test_shares() -> None:
    """Promise: 5% and 0.05 are the same; 5 without a sign is refused as ambiguous."""
    assert parse_share("5%", "x") == parse_share("0.05", "x") == pytest.approx(0.05)
    for wrong in ("5", "-1%", "a lot", "nan"):
        with pytest.raises(ConfigError, match="5%"):
            parse_share(wrong, "--tolerance")


def test_figures_carry_their_unit() -> None:
    """Promise: every number is shown with its unit."""
    assert format_figure(FigureKind.ENERGY, 12.3) == "12.3 J"
    assert format_figure(FigureKind.INSTRUCTIONS, 2.5e9) == "2.5 Ginstr"
    assert format_figure(FigureKind.CPU_TIME, 0.25) == "250 ms"
