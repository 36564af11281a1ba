"""A lever: its state, the contract of reading, writing and restoring it, and parsing of values."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from wattloop.core.errors import ConfigError, LeverError
from wattloop.core.units import Dimension, quantity

Setting = float | str | None
"""Watts or MHz, the name of a choice, or None: left to the device (an unlocked clock)."""


class WriteOrderError(LeverError):
    """Another lever must be written first: a lower bound would exceed the upper one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverState:
    """State of a lever. Reading it changes nothing.

    Attributes:
        name: `gpu:0/power_limit`, `cpu:0/power_limit_long_term`, `cpu/governor`.
        value: its present value; None when it cannot be read.
        unit: `W`, `MHz`, or `name` for a choice.
        default: the value it leaves the factory with; None when the device does not say.
        source: file or library call it was read from.
    """

    name: str
    available: bool
    reason: str = ""
    remedy: str = ""
    value: float | str | None = None
    unit: str = ""
    low: float | None = None
    high: float | None = None
    default: float | str | None = None
    choices: tuple[str, ...] = ()
    source: str = ""
    note: str = ""

    @property
    def refusal(self) -> str:
        """The reason why it cannot be set, with the remedy; empty when it can."""
        if self.available:
            return ""
        return f"{self.name} cannot be set: {self.reason}" + (self.remedy and f"; {self.remedy}")

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "choices": list(self.choices)}


class Lever(ABC):
    """A setting of one device that can be changed and restored.

    Programs do not call `write`: they use `control.lever_session`, which locks the device, journals
    the previous value, checks the new one, reads it back and restores.

    A lever that is one file or one call implements the abstract methods and nothing else. A lever
    that is made of several (a governor is a file per core) also defines its *parts*, since
    each part is restored to its own previous value.

    Attributes:
        name: unique on this machine, `gpu:0/power_limit`.
        device: unit of locking, which also identifies the same card after
            a restart: `nvidia:GPU-5e8c...` (its UUID), `cpu`, `virtual:/path:0`. Up to the first
            colon it names the kind of device.
        reads_back: whether `read` returns the value written; NVML has no getter for locked clocks.
        tolerance: rounding of the device: a value read within this of the value written is equal.
        shared_parts: parts that other levers of the device have as well; such a part is restored
            with the last of those that need it.
        kept_elsewhere: another process locks, journals and restores it, also after `kill -9`.
    """

    name: str
    device: str
    reads_back: bool = True
    shared_parts: frozenset[str] = frozenset()
    tolerance: float = 0.0
    kept_elsewhere: bool = False

    @abstractmethod
    def state(self) -> LeverState:
        """Return the present state. Never raises: a fault is in `reason`."""

    @abstractmethod
    def read(self) -> Setting:
        """Return the present value. Raises LeverError: it cannot be read now."""

    @abstractmethod
    def accepted(self, value: Setting) -> Setting:
        """Return `value` rounded to the device's step. Raises ConfigError outside its limits."""

    @abstractmethod
    def write(self, value: Setting) -> None:
        """Write an accepted value. Raises LeverError: no permission, lost, or refused."""

    @abstractmethod
    def write_text(self, value: Setting) -> str:
        """Describe for people what `write` would do: the file and its content, or the call."""

    def _state(self, permission: tuple[bool, str, str], **facts: Any) -> LeverState:
        """Return the state from (available, reason, remedy) and what else is known."""
        available, reason, remedy = permission
        return LeverState(
            name=self.name, available=available, reason=reason, remedy=remedy, **facts
        )

    def _number(self, value: Setting) -> float:
        assert isinstance(value, float | int), f"{self.name} takes a number, not {value!r}"
        return value

    def conflict(self, settings: Mapping[str, Setting]) -> str:
        """Return why `settings` (lever name -> value, including this one) contradict each other."""
        return ""

    def where(self) -> Mapping[str, str]:
        """Return environment variables with which another process finds this lever again."""
        return {}

    def parts(self) -> Mapping[str, Setting]:
        """Return part -> present value. Raises LeverError: it cannot be read now."""
        return {"": self.read()}

    def read_part(self, part: str) -> Setting:
        """Return the present value of one part. Raises LeverError: unreadable, or gone."""
        parts = self.parts()
        if part not in parts:
            raise LeverError(f"{self.name}: {part} is gone")
        return parts[part]

    def parts_of(self, value: Setting) -> Mapping[str, Setting]:
        """Return part -> the value after `write(value)`."""
        return {"": value}

    def check_part(self, part: str, value: Setting) -> None:
        """Raise ConfigError for a value that must not be restored: outside the device's limits."""
        self.accepted(value)

    def write_part(self, part: str, value: Setting) -> None:
        """Restore a part to its previous value."""
        self.write(value)

    def write_part_text(self, part: str, value: Setting) -> str:
        return self.write_text(value)

    def same(self, one: Setting, other: Setting) -> bool:
        """Return True if two values read are equal."""
        return _near(one, other, 0.0)

    def took(self, written: Setting, shows: Setting) -> bool:
        """Return True if `shows` is the device's rounding of `written`."""
        return _near(written, shows, self.tolerance)


def _near(one: Setting, other: Setting, tolerance: float) -> bool:
    if isinstance(one, float | int) and isinstance(other, float | int):
        return abs(one - other) <= tolerance + 1e-9 * abs(one)
    return one == other


def format_setting(value: Setting, unit: str = "") -> str:
    if value is None:
        return "not set"
    if isinstance(value, str):
        return value
    return f"{value:g} {unit}".rstrip() if unit != "name" else f"{value:g}"


# Parsing of values as users write them.

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


def full_value(state: LeverState) -> float | None:
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
        whole = full_value(state)
        if whole is None:
            raise ConfigError(f"{lever.name}: the device states no maximum to take {text} of")
        return whole * found.value
    return found.value / (own[1] if own else 1.0)


def _example(state: LeverState) -> str:
    return "250 W" if state.unit == "W" else "1400 MHz or 1.4 GHz"
