"""Parsing of lever values as users write them."""

from wattloop.control.lever import Lever, LeverState, Setting
from wattloop.core.errors import ConfigError
from wattloop.core.quantities import Dimension, quantity

DEFAULT = "default"
UNITS = {"W": (Dimension.POWER, 1.0), "MHz": (Dimension.FREQUENCY, 1e6)}
"""Unit of a lever -> its quantity, and the unit in SI."""


def parse_setting(text: str | float, lever: Lever) -> Setting:
    """Parse `250`, `250 W`, `70%`, `1.4 GHz`, `performance` or `default` for a device.

    A share is of the default power limit (the TDP), else of the highest value; `default` is what
    the device leaves the factory with, and for a clock that it is not locked.

    Raises:
        ConfigError: not a value of this lever, or outside the device's limits.
    """
    state = lever.state()
    if isinstance(text, str):
        words = text.strip()
        if words.lower() == DEFAULT:
            return _default(lever, state)
        if state.unit == "name":
            return lever.accepted(words)
        return lever.accepted(_number(words, lever, state))
    if isinstance(text, bool) or not isinstance(text, int | float):
        raise ConfigError(f"{lever.name}: {text!r} is neither a number nor a word")
    if state.unit == "name":
        raise ConfigError(f"{lever.name} takes a name ({', '.join(state.choices)}), not {text:g}")
    return lever.accepted(float(text))


def whole_of(state: LeverState) -> float | None:
    """Return the value of 100%; None when the device does not state it."""
    whole = state.default if isinstance(state.default, float | int) else state.high
    # the default of cpu/min_frequency is its lowest value; shares are of the highest
    if state.unit == "MHz" and state.high is not None:
        whole = state.high
    return whole


def _default(lever: Lever, state: LeverState) -> Setting:
    if lever.name.endswith("_clock"):
        return lever.accepted(None)
    if state.unit == "name" and state.default is None:
        raise ConfigError(f"{lever.name} has no default; name one of {', '.join(state.choices)}")
    value = state.default if state.default is not None else state.high
    if value is None:
        raise ConfigError(f"{lever.name}: the device states no default; give a value")
    return lever.accepted(value)


def _number(text: str, lever: Lever, state: LeverState) -> float:
    own = UNITS.get(state.unit)
    accepted = (own[0],) if own else ()
    what = f"a value; write it as {_example(state)}, 70% or default"
    try:
        found = quantity(text, Dimension.SHARE, *accepted, what=what)
    except ValueError as error:
        raise ConfigError(f"{lever.name}: {error}") from None
    if not found.unit:
        return found.value
    if found.dimension is Dimension.SHARE:
        whole = whole_of(state)
        if whole is None:
            raise ConfigError(f"{lever.name}: the device states no maximum to take {text} of")
        return whole * found.value
    return found.value / (own[1] if own else 1.0)


def _example(state: LeverState) -> str:
    return "250 W" if state.unit == "W" else "1400 MHz or 1.4 GHz"
