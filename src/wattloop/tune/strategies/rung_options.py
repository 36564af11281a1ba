"""Options of strategies with rungs, checked."""

import math
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.tune.amounts import joules

__all__ = ["MOST_RUNGS", "check_options", "rung_joules"]

MOST_RUNGS = 12


def check_options(eta: Any, rung_epochs: Any, rungs: Any, paused: Any) -> None:
    """Raise ConfigError for the first that is out of range, with what to give."""
    if not _number(eta) or not 1 < eta <= 100:
        raise ConfigError(f"eta is {eta!r}; give a number above 1, such as 3")
    if not _number(rung_epochs) or not 0 < rung_epochs < math.inf:
        raise ConfigError(f"rung_epochs is {rung_epochs!r}; give a number above 0")
    if rungs is not None and (not isinstance(rungs, int) or not 1 <= rungs <= MOST_RUNGS):
        raise ConfigError(f"rungs is {rungs!r}; give a whole number from 1 to {MOST_RUNGS}")
    if not isinstance(paused, int) or paused < 1:
        raise ConfigError(f"paused is {paused!r}; give a whole number of 1 or more")


def rung_joules(written: float | str | None) -> float | None:
    """Joules of the first rung; None when they are to be found out.

    Raises:
        ConfigError: no energy, or not above 0.
    """
    if written is None:
        return None
    found = joules(written)
    if not _number(found) or not 0 < found < math.inf:
        raise ConfigError(f"rung_energy is {written!r}; give an energy above 0, such as '20 kJ'")
    return float(found)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
