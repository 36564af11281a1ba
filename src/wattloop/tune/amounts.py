"""Energies, times and numbers as people write them in a search."""

import re
from typing import Any

from wattloop.characterize.quantities import seconds
from wattloop.core.quantities import Dimension, quantity

__all__ = ["joules", "number", "plain", "seconds"]

EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
"""Numbers that YAML 1.1 reads as text: `1e-3` has no dot, `1.e3` no sign."""


def joules(value: Any) -> Any:
    """`500`, `500 J`, `20 kJ`, `2 Wh` or `1.5 kWh` as joules; other kinds are left to be refused.

    Raises:
        ValueError: a text that is not an energy.
    """
    if not isinstance(value, str):
        return value
    what = "an energy; write joules, '20 kJ', '5 Wh' or '2 kWh'"
    return quantity(value, Dimension.ENERGY, what=what).value


def number(value: Any) -> Any:
    """`1e-3` as the number it is, where YAML has made a text of it."""
    if isinstance(value, str) and EXPONENT.fullmatch(value.strip()):
        return float(value)
    return value


def plain(value: Any) -> Any:
    """The same for every item of a list."""
    return [number(item) for item in value] if isinstance(value, list | tuple) else number(value)
