"""Limits and tolerances as people write them."""

import math
import re
from typing import NamedTuple

from wattloop.check.figures import Kind, format_figure
from wattloop.core.errors import ConfigError

__all__ = ["Limit", "limit", "share"]

UNITS: dict[str, tuple[Kind, float]] = {
    "uj": (Kind.ENERGY, 1e-6),
    "mj": (Kind.ENERGY, 1e-3),
    "j": (Kind.ENERGY, 1.0),
    "kj": (Kind.ENERGY, 1e3),
    "mwh": (Kind.ENERGY, 3.6),
    "wh": (Kind.ENERGY, 3_600.0),
    "kwh": (Kind.ENERGY, 3_600_000.0),
    "us": (Kind.CPU_TIME, 1e-6),
    "ms": (Kind.CPU_TIME, 1e-3),
    "s": (Kind.CPU_TIME, 1.0),
    "min": (Kind.CPU_TIME, 60.0),
    "instructions": (Kind.INSTRUCTIONS, 1.0),
    "instr": (Kind.INSTRUCTIONS, 1.0),
    "kinstr": (Kind.INSTRUCTIONS, 1e3),
    "minstr": (Kind.INSTRUCTIONS, 1e6),
    "ginstr": (Kind.INSTRUCTIONS, 1e9),
}
"""Seconds are CPU seconds: those of the clock on the wall depend on who else is at work."""
MEGAJOULES = {"MJ": 1e6, "MWh": 3.6e9}
"""The two whose case matters: a megajoule is no millijoule."""


class Limit(NamedTuple):
    """What must not be exceeded, in SI units."""

    kind: Kind
    value: float

    def __str__(self) -> str:
        """With its unit, for people."""
        return format_figure(self.kind, self.value)


def limit(text: str) -> Limit:
    """`12 J`, `3 Wh`, `250 ms` (CPU time) or `2e9 instructions`.

    Raises:
        ConfigError: no number, or a unit that is not known.
    """
    match = re.fullmatch(r"\s*(\d[\d_.]*(?:e[-+]?\d+)?)\s*([a-zA-Zµ]+)\s*", str(text))
    known = "J, kJ, Wh, ms, s or instructions"
    if match is None:
        raise ConfigError(f"{text!r} is no limit; write a number and a unit, such as '12 J'")
    unit = match.group(2).replace("µ", "u")
    kind, scale = UNITS.get(unit.lower(), (None, 1.0))
    if unit in MEGAJOULES:
        kind, scale = Kind.ENERGY, MEGAJOULES[unit]
    if kind is None:
        raise ConfigError(f"{text!r}: the unit {unit!r} is not known; use {known}")
    try:
        value = float(match.group(1)) * scale
    except ValueError:
        raise ConfigError(f"{text!r}: {match.group(1)!r} is not a number") from None
    return Limit(kind, value)


def share(text: str | float, what: str) -> float:
    """`5%` or `0.05` as a fraction.

    Raises:
        ConfigError: not a share between 0 and 1000%.
    """
    written = str(text).strip()
    try:
        value = float(written.removesuffix("%")) / (100 if written.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 10 or (value >= 1 and not written.endswith("%")):
        raise ConfigError(f"{what} {text}: write a share such as 5% or 0.05")
    return value
