"""Gauges that the user names in the setting `gauges`."""

import glob
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from wattloop.core.errors import ConfigError
from wattloop.core.provenance import Provenance
from wattloop.core.records import Domain, DomainKind, Scope
from wattloop.core.results import Missing
from wattloop.hardware.host import Host
from wattloop.hardware.number_file import DecimalFile
from wattloop.measure.gauges.gauge import FileSensor, Gauge

__all__ = ["configured_gauges"]

UNITS = {"W": 1.0, "mW": 1e-3, "uW": 1e-6, "J": 1.0, "mJ": 1e-3, "uJ": 1e-6}
LARGEST_SCALE = 1e12
KEYS = ("name", "path", "unit", "scale", "scope", "kind", "inside", "provenance")

Choice = TypeVar("Choice", bound=StrEnum)


def configured_gauges(
    entries: Sequence[Mapping[str, Any]], host: Host
) -> tuple[list[Gauge], list[Missing]]:
    """A gauge for every file that the entries name, and the entries that name none.

    Raises:
        ConfigError: an entry is wrong; the message names it and what is allowed.
    """
    gauges: list[Gauge] = []
    missing: list[Missing] = []
    for number, entry in enumerate(entries, start=1):
        domain, pattern, factor = _checked(entry, f"gauges[{number}]")
        paths = sorted(glob.glob(str(host.sysfs / pattern)))  # noqa: PTH207 - the pattern may be absolute, which Path.glob refuses
        if not paths:
            missing.append(
                Missing(
                    domain["name"],
                    f"no file matches {host.sysfs / pattern}",
                    f"correct 'path' of gauge '{domain['name']}' in your settings, or remove it",
                )
            )
        for index, path in enumerate(paths):
            name = domain["name"] if len(paths) == 1 else f"{domain['name']}:{index}"
            sensor = FileSensor([DecimalFile(Path(path))], factor)
            gauges.append(Gauge(Domain(**{**domain, "name": name, "source": path}), sensor))
    _refuse_twins(gauges)
    return gauges, missing


def _checked(entry: Mapping[str, Any], where: str) -> tuple[dict[str, Any], str, float]:
    """Fields of the domain, pattern of the path, and factor to SI units."""
    name = _text(entry, "name", where)
    where = f"{where} '{name}'"
    unknown = [key for key in entry if key not in KEYS]
    if unknown:
        raise ConfigError(f"{where}: unknown key '{unknown[0]}'; known are {', '.join(KEYS)}")
    path = _text(entry, "path", where)
    unit = _text(entry, "unit", where)
    if unit not in UNITS:
        raise ConfigError(f"{where}: unit is {unit!r}; use one of {', '.join(UNITS)}")
    natural = DomainKind.COUNTER if unit.endswith("J") else DomainKind.GAUGE
    kind = _choice(DomainKind, entry.get("kind", natural), "kind", where)
    if kind is not natural:
        raise ConfigError(
            f"{where}: kind is '{kind}' but unit is {unit}; a counter is in J, mJ or uJ, "
            "a gauge in W, mW or uW"
        )
    inside = entry.get("inside")
    if inside is not None and not isinstance(inside, str):
        raise ConfigError(f"{where}: inside must be the name of a domain, not {inside!r}")
    fields = {
        "name": name,
        "kind": kind,
        "scope": _choice(Scope, entry.get("scope", Scope.OTHER), "scope", where),
        "inside": inside or None,
        "provenance": _choice(
            Provenance, entry.get("provenance", Provenance.MEASURED), "provenance", where
        ),
        "resolution": UNITS[unit] * _scale(entry, where),
        # Nothing is known of the sensor: windows are told not to trust it below this.
        "update_period_s": 0.1,
        "read_cost_s": 20e-6,
    }
    return fields, path, UNITS[unit] * _scale(entry, where)


def _text(entry: Mapping[str, Any], key: str, where: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value.strip():
        given = f"is {value!r}" if key in entry else "is missing"
        raise ConfigError(
            f"{where}: '{key}' {given}; a gauge needs name, path and unit, such as "
            "{name: fan, path: class/hwmon/hwmon2/power1_input, unit: uW}"
        )
    return value.strip()


def _scale(entry: Mapping[str, Any], where: str) -> float:
    value = entry.get("scale", 1.0)
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not 0 < value <= LARGEST_SCALE:
        raise ConfigError(f"{where}: scale is {value!r}; use a number above 0, such as 0.5")
    return float(value)


def _choice(choices: type[Choice], value: Any, key: str, where: str) -> Choice:
    try:
        return choices(value)
    except ValueError:
        allowed = ", ".join(choice.value for choice in choices)
        raise ConfigError(f"{where}: {key} is {value!r}; use one of {allowed}") from None


def _refuse_twins(gauges: Iterable[Gauge]) -> None:
    seen: dict[str, str] = {}
    for gauge in gauges:
        name, source = gauge.domain.name, gauge.domain.source
        if name in seen:
            raise ConfigError(f"gauges: two are called '{name}' ({seen[name]} and {source})")
        seen[name] = source
