"""Energies, times and numbers as people write them in a search."""

import re
from typing import Any

from wattloop.characterize.quantities import seconds

__all__ = ["joules", "number", "plain", "seconds"]

JOULES = {
    "": 1.0,
    "j": 1.0,
    "kj": 1e3,
    "mj": 1e6,
    "gj": 1e9,
    "wh": 3_600.0,
    "kwh": 3.6e6,
    "mwh": 3.6e9,
}
"""Units in lower case. `mJ` would be a millijoule, which nobody budgets: M is always mega."""

EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
"""Numbers that YAML 1.1 reads as text: `1e-3` has no dot, `1.e3` no sign."""


def joules(value: Any) -> Any:
    """`500`, `500 J`, `20 kJ`, `2 Wh` or `1.5 kWh` as joules; other kinds are left to be refused.

    Raises:
        ValueError: a text that is no energy.
    """
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*([-+\d.eE]+?)\s*([a-zA-Z]*)\s*", value)
    try:
        amount = float(match.group(1)) if match else None
    except ValueError:
        amount = None
    if match is None or amount is None or match.group(2).lower() not in JOULES:
        raise ValueError(f"{value!r} is not an energy; write joules, '20 kJ', '5 Wh' or '2 kWh'")
    return amount * JOULES[match.group(2).lower()]


def number(value: Any) -> Any:
    """`1e-3` as the number it is, where YAML has made a text of it."""
    if isinstance(value, str) and EXPONENT.fullmatch(value.strip()):
        return float(value)
    return value


def plain(value: Any) -> Any:
    """The same for every item of a list."""
    return [number(item) for item in value] if isinstance(value, list | tuple) else number(value)
