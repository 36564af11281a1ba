"""Promises of a user's gauge entry: it is right, or refused with its name and the valid form."""

from pathlib import Path
from typing import Any

import pytest

from wattloop.core.errors import ConfigError
from wattloop.core.records import DomainKind, Gap, Provenance, Scope
from wattloop.hardware.host import Host
from wattloop.meters.gauge_files import configured_gauges

GOOD = {"name": "fan", "path": "fan", "unit": "W"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"unit": "kWh"}, ["'fan'", "kWh", "W, mW, uW, J, mJ, uJ"]),
        ({"unit": None}, ["'fan'", "'unit' is None"]),
        ({"path": ""}, ["'fan'", "'path' is ''"]),
        ({"name": 3}, ["gauges[1]", "'name' is 3"]),
        ({"colour": "red"}, ["'fan'", "unknown key 'colour'", "name, path, unit, scale"]),
        ({"scale": 0}, ["'fan'", "scale is 0"]),
        ({"scale": "two"}, ["'fan'", "scale is 'two'"]),
        ({"scale": float("nan")}, ["'fan'", "scale is nan"]),
        ({"scale": True}, ["'fan'", "scale is True"]),
        ({"scope": "rack"}, ["'fan'", "cpu, gpu, dram, node, other"]),
        ({"kind": "meter"}, ["'fan'", "counter, gauge"]),
        ({"kind": "counter"}, ["'fan'", "unit is W", "a counter is in J"]),
        ({"provenance": "guessed"}, ["'fan'", "measured, modelled, estimated"]),
        ({"inside": 7}, ["'fan'", "inside must be the name"]),
    ],
)
def test_bad_entry_is_named_with_the_valid_form(
    tmp_path: Path, changes: dict[str, Any], words: list[str]
) -> None:
    """The message names the entry, the error and the valid form."""
    with pytest.raises(ConfigError) as caught:
        configured_gauges([{**GOOD, **changes}], Host(sysfs=tmp_path))
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("key", ["name", "path", "unit"])
def test_missing_key_is_named(tmp_path: Path, key: str) -> None:
    """Each of the three needed keys is asked for, with an example."""
    entry = {k: v for k, v in GOOD.items() if k != key}
    with pytest.raises(ConfigError, match=f"'{key}' is missing.*such as"):
        configured_gauges([entry], Host(sysfs=tmp_path))


@pytest.mark.parametrize(
    ("unit", "kind", "expected"),
    [
        ("W", DomainKind.GAUGE, 12.5),
        ("mW", DomainKind.GAUGE, 12.5e-3),
        ("uW", DomainKind.GAUGE, 12.5e-6),
        ("J", DomainKind.COUNTER, 12.5),
        ("mJ", DomainKind.COUNTER, 12.5e-3),
        ("uJ", DomainKind.COUNTER, 12.5e-6),
    ],
)
def test_unit_decides_kind_and_factor(
    tmp_path: Path, unit: str, kind: DomainKind, expected: float
) -> None:
    """Every unit becomes SI, and decimals are read, since other programs write them."""
    (tmp_path / "fan").write_text("12.5\n")
    ((gauge,), _) = configured_gauges([{**GOOD, "unit": unit}], Host(sysfs=tmp_path))
    assert gauge.domain.kind is kind
    assert gauge.sensor.read() == pytest.approx(expected)


def test_all_fields_arrive(tmp_path: Path) -> None:
    """Scope, container, provenance and scale are the user's; an absolute path stays unchanged."""
    file = tmp_path / "elsewhere"
    file.write_text("40\n")
    entry = {
        **GOOD, "path": str(file), "scale": 0.5, "scope": "node", "inside": "psys",
        "provenance": "estimated", "kind": "gauge",
    }  # fmt: skip
    ((gauge,), _) = configured_gauges([entry], Host(sysfs=tmp_path / "sys"))
    domain = gauge.domain
    assert (domain.scope, domain.inside) == (Scope.NODE, "psys")
    assert domain.provenance is Provenance.ESTIMATED
    assert domain.source == str(file)
    assert gauge.sensor.read() == pytest.approx(20.0)


@pytest.mark.parametrize("content", ["nan", "inf", "-3", "-3.5", "", "many"])
def test_an_invalid_power_is_a_gap(tmp_path: Path, content: str) -> None:
    """Infinite, negative and garbled contents are gaps."""
    (tmp_path / "fan").write_text(content)
    ((gauge,), _) = configured_gauges([GOOD], Host(sysfs=tmp_path))
    assert isinstance(gauge.sensor.read(), Gap)


def test_two_gauges_of_one_name_are_refused(tmp_path: Path) -> None:
    """Names are unique within a node, or totals would be wrong."""
    (tmp_path / "fan").write_text("1\n")
    with pytest.raises(ConfigError, match="two are called 'fan'"):
        configured_gauges([GOOD, GOOD], Host(sysfs=tmp_path))
