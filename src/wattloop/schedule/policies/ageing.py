"""W_age: how much a job gains by waiting, so that none waits for ever (thesis 5.4; ADR 0031)."""

import math

from wattloop.core.errors import ConfigError

__all__ = ["EDP_AGE_WEIGHT_PER_S", "TIME_AGE_WEIGHT", "share", "weight"]

TIME_AGE_WEIGHT = 1.0
"""Seconds of score per second waited: jobs go in the order in which they would have ended."""
EDP_AGE_WEIGHT_PER_S = 1 / 600
"""Ten minutes of waiting halve a job's energy-delay product."""


def weight(name: str, value: float) -> float:
    """The parameter called `name`, if it is one that a policy can weigh with.

    Raises:
        ConfigError: it is negative, infinite or no number.
    """
    if not (0 <= value < math.inf):
        raise ConfigError(f"{name} is {value:g}; give a number from 0 up")
    return float(value)


def share(name: str, value: float | str) -> float:
    """The parameter called `name`, written as a share (`0.1`) or in percent (`10%`).

    Raises:
        ConfigError: it is neither, or not from 0 to 1.
    """
    text = str(value).strip()
    try:
        found = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        found = math.nan
    if not 0 <= found <= 1:
        raise ConfigError(f"{name} is {value}; give a share such as 0.1, or 10%")
    return found
