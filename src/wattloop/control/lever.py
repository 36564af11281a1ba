"""A lever: what is known of it, and how it is read and written."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from wattloop.core.errors import LeverError

Setting = float | str | None
"""Watts or MHz, the name of a choice, or None: left to the device (a clock that is not locked)."""


class WriteOrderError(LeverError):
    """Cannot be written before another lever is: a lower bound that would pass the upper one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverState:
    """A lever as it stands now. Looking at it changes nothing.

    Attributes:
        name: `gpu:0/power_limit`, `cpu:0/power_limit_long_term`, `cpu/governor`.
        available: whether this user may set it.
        reason: why not, when it is not available.
        remedy: what would allow it.
        value: its present value; None when it cannot be read.
        unit: `W`, `MHz`, or `name` for a choice.
        low, high: the device's own limits.
        default: the value it leaves the factory with; None when the device does not say.
        choices: for a lever that is a choice.
        source: file or library call it was read from.
        note: what a reader should know beside.
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

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "choices": list(self.choices)}


class Lever(ABC):
    """One thing that can be set on one device.

    Programs do not call `write`: they use `control.hold`, which locks the device, journals the
    previous value, checks the new one, reads it back and restores.

    A lever that is one file or one call implements the abstract methods and nothing else. One
    that is made of several (a governor is a file per core) also says what its *parts* are, since
    each part is restored to its own previous value.

    Attributes:
        name: unique on this machine, `gpu:0/power_limit`.
        device: what two processes must not set at once, and what finds the same card again after
            a restart: `nvidia:GPU-5e8c...` (its UUID), `cpu`, `virtual:/path:0`. Up to the first
            colon it names the kind of device.
        reads_back: whether `read` shows what was written; NVML has no getter for locked clocks.
        tolerance: how far a device may round: a value read this near to the value written is it.
        shared_parts: parts that other levers of the device have as well; such a part is put back
            with the last of those that need it.
        kept_elsewhere: another process locks, journals and restores it for us, also when we die.
    """

    name: str
    device: str
    reads_back: bool = True
    shared_parts: frozenset[str] = frozenset()
    tolerance: float = 0.0
    kept_elsewhere: bool = False

    @abstractmethod
    def state(self) -> LeverState:
        """As it stands now. Never raises: a fault is in `reason`."""

    @abstractmethod
    def read(self) -> Setting:
        """Its present value.

        Raises:
            LeverError: it cannot be read now.
        """

    @abstractmethod
    def accepted(self, value: Setting) -> Setting:
        """`value` as the device would take it (rounded to its step).

        Raises:
            ConfigError: outside the device's own limits, or none of its choices.
        """

    @abstractmethod
    def write(self, value: Setting) -> None:
        """Hand an accepted value to the device.

        Raises:
            LeverError: no permission, lost, or refused by the driver.
        """

    @abstractmethod
    def write_text(self, value: Setting) -> str:
        """What `write` would do, for people: the file and what goes into it, or the call."""

    def conflict(self, settings: Mapping[str, Setting]) -> str:
        """Why `settings` (lever name -> value, this one among them) cannot be had together."""
        return ""

    def where(self) -> Mapping[str, str]:
        """Environment variables with which another process finds this lever again."""
        return {}

    def parts(self) -> Mapping[str, Setting]:
        """Part -> present value.

        Raises:
            LeverError: it cannot be read now.
        """
        return {"": self.read()}

    def read_part(self, part: str) -> Setting:
        """The present value of one part, whatever state the others are in.

        Raises:
            LeverError: it cannot be read now, or is gone.
        """
        parts = self.parts()
        if part not in parts:
            raise LeverError(f"{self.name}: {part} is gone")
        return parts[part]

    def parts_of(self, value: Setting) -> Mapping[str, Setting]:
        """Part -> what `write(value)` would leave there."""
        return {"": value}

    def check_part(self, part: str, value: Setting) -> None:
        """Raise ConfigError for a value that must not be put back: outside the device's limits."""
        self.accepted(value)

    def write_part(self, part: str, value: Setting) -> None:
        """Put a part's previous value back."""
        self.write(value)

    def write_part_text(self, part: str, value: Setting) -> str:
        """What `write_part` would do, for people."""
        return self.write_text(value)

    def same(self, one: Setting, other: Setting) -> bool:
        """Whether two values read are one."""
        return _near(one, other, 0.0)

    def took(self, written: Setting, shows: Setting) -> bool:
        """Whether `shows` is what the device makes of `written`."""
        return _near(written, shows, self.tolerance)


def _near(one: Setting, other: Setting, tolerance: float) -> bool:
    if isinstance(one, float | int) and isinstance(other, float | int):
        return abs(one - other) <= tolerance + 1e-9 * abs(one)
    return one == other


def shown(value: Setting, unit: str = "") -> str:
    if value is None:
        return "not set"
    if isinstance(value, str):
        return value
    return f"{value:g} {unit}".rstrip() if unit != "name" else f"{value:g}"
