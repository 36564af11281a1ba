"""Parsing of limits and tolerances."""

import math
from typing import NamedTuple

from wattloop.check.figures import Kind, format_figure
from wattloop.core.errors import ConfigError
from wattloop.core.quantities import Dimension, quantity

KINDS = {
    Dimension.ENERGY: Kind.ENERGY,
    Dimension.TIME: Kind.CPU_TIME,
    Dimension.COUNT: Kind.INSTRUCTIONS,
}
"""Seconds are CPU seconds: the time on the clock depends on the machine's other work."""


class Limit(NamedTuple):
    """An upper limit, in SI units."""

    kind: Kind
    value: float

    def __str__(self) -> str:
        return format_figure(self.kind, self.value)


def limit(text: str) -> Limit:
    """Parse `12 J`, `3 Wh`, `250 ms` (CPU time) or `2e9 instructions`. Raises ConfigError."""
    try:
        found = quantity(
            str(text), *KINDS, what="a limit; write a number and J, kJ, Wh, ms, s or instructions"
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if not found.unit or found.value < 0:
        raise ConfigError(f"{text!r} is not a limit; write a number and a unit, such as '12 J'")
    return Limit(KINDS[found.dimension], found.value)


def share(text: str | float, what: str) -> float:
    """`5%` or `0.05` as a fraction. Raises ConfigError: not a share between 0 and 1000%."""
    written = str(text).strip()
    try:
        value = float(written.removesuffix("%")) / (100 if written.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 10 or (value >= 1 and not written.endswith("%")):
        raise ConfigError(f"{what} {text}: write a share such as 5% or 0.05")
    return value
