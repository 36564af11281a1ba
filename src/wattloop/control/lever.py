"""A lever: what is known of it, and how it is read and written."""

import os
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wattloop.hardware.text_file import read_whole

__all__ = ["Lever", "LeverState", "Setting", "read_number", "writable_or_why"]

Setting = float | str | None
"""Watts or MHz, the name of a choice, or None: left to the device (a clock that is not locked)."""


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
    choices: tuple[str, ...] = ()
    source: str = ""
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "choices": list(self.choices)}


class Lever(ABC):
    """One thing that can be set on one device.

    Programs do not call `write`: they use `control.hold`, which locks the device, journals the
    previous value, checks the new one, reads it back and restores.

    Attributes:
        name: unique on this machine, `gpu:0/power_limit`.
        device: what two processes must not set at once, and what finds the same card again after
            a restart: `nvidia:GPU-5e8c...` (its UUID), `cpu`, `virtual:/path:0`.
    """

    name: str
    device: str

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


def read_number(path: Path, per_unit: float = 1.0) -> float | None:
    """The number in a file divided by `per_unit`; None when there is none."""
    number = read_whole(path)
    return None if number is None else number / per_unit


def writable_or_why(path: Path) -> tuple[bool, str, str]:
    """(may be written, reason why not, remedy). Asks the kernel; never tries."""
    if os.access(path, os.W_OK):
        return True, "", ""
    if os.geteuid() == 0:
        return (
            False,
            f"{path} is read-only, even for root",
            "in a container mount the host's /sys writable and set WATTLOOP_SYSFS_ROOT",
        )
    return False, f"{path} is writable by root only", f"run as root, or 'sudo chmod a+w {path}'"
