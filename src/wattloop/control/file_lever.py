"""Levers that are files of the kernel: permission, limits, reading and writing."""

import errno
import math
import os
from pathlib import Path
from typing import NamedTuple

from wattloop.control.lever import Lever, LeverState, Setting, format_setting
from wattloop.core.errors import ConfigError, LeverError
from wattloop.core.files import CLOSE_ON_EXEC, user_id
from wattloop.hardware.host import read_text, read_whole


class LimitFiles(NamedTuple):
    """Files with a device's limits and factory value; zero counts as not stated."""

    low: Path
    high: Path
    default: Path


class NumberLever(Lever):
    """A lever that is a number in one file, with limits in others.

    Args:
        per_unit: what is in the file divided by this is W or MHz.
    """

    def __init__(
        self,
        name: str,
        device: str,
        root: Path,
        path: Path,
        per_unit: float,
        unit: str,
        *,
        limits: "LimitFiles",
        tolerance: float = 0.0,
        note: str = "",
    ) -> None:
        self.name = name
        self.device = device
        self.tolerance = tolerance
        self._root = root
        self._path = path
        self._per_unit = per_unit
        self._unit = unit
        self._limits = limits
        self._note = note
        self._ceiling: float | None = None

    def state(self) -> LeverState:
        permission = writable_or_why(self._path)
        value = read_number(self._path, self._per_unit)
        if permission[0] and value is None:
            permission = False, f"{self._path} holds no number", ""
        notes = [self._note]
        if self._high() is None:
            notes.append("the kernel states no maximum: nothing above the present value is taken")
        return self._state(
            permission,
            value=value,
            unit=self._unit,
            low=self._limit(self._limits.low),
            high=self._high(),
            default=self._limit(self._limits.default),
            source=str(self._path),
            note="; ".join(filter(None, notes)),
        )

    def read(self) -> Setting:
        value = read_number(self._path, self._per_unit)
        if value is None:
            raise LeverError(_unreadable(self.name, self._path))
        if self._ceiling is None:
            self._ceiling = value
        return value

    def accepted(self, value: Setting) -> Setting:
        """Accept a value within the limits; without a maximum, not above the previous one."""
        high = self._high()
        if high is None:
            if self._ceiling is None:
                self._ceiling = read_number(self._path, self._per_unit)
            high = self._ceiling
        return number_within(self.name, value, self._limit(self._limits.low), high, self._unit)

    def check_part(self, part: str, value: Setting) -> None:
        """Check a previous value against the limits, where the device states any."""
        number_within(self.name, value, self._limit(self._limits.low), self._high(), self._unit)

    def write(self, value: Setting) -> None:
        write_file(self.name, self._path, str(round(self._number(value) * self._per_unit)))

    def write_text(self, value: Setting) -> str:
        return f"write {round(self._number(value) * self._per_unit)} to {self._path}"

    def where(self) -> dict[str, str]:
        return {"WATTLOOP_SYSFS_ROOT": str(self._root.absolute())}

    def _high(self) -> float | None:
        return self._limit(self._limits.high)

    def _limit(self, path: Path) -> float | None:
        return read_number(path, self._per_unit) or None


def number_within(
    name: str, value: Setting, low: float | None, high: float | None, unit: str
) -> float:
    """Return `value` as a number. Raises ConfigError, with the limits, if it is outside them."""
    if not isinstance(value, float | int) or isinstance(value, bool) or not math.isfinite(value):
        raise ConfigError(f"{name} takes a number of {unit}, not {format_setting(value)!r}")
    if value <= 0 or (low is not None and value < low) or (high is not None and value > high):
        limits = f"{low or 0:g} to {high:g}" if high is not None else f"at least {low or 0:g}"
        raise ConfigError(
            f"{name}: {value:g} {unit} is outside the device's limits, {limits} {unit}"
        )
    return float(value)


def read_number(path: Path, per_unit: float = 1.0) -> float | None:
    """Return the number in a file divided by `per_unit`; None when it has none."""
    number = read_whole(path)
    return None if number is None else number / per_unit


def write_file(name: str, path: Path, text: str) -> None:
    """Write once to an existing file. Raises LeverError: with the kernel's error and the remedy."""
    try:
        # never O_CREAT: a missing file must not be created
        descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | CLOSE_ON_EXEC)
        try:
            os.write(descriptor, f"{text}\n".encode())
        finally:
            os.close(descriptor)
    except OSError as error:
        raise LeverError(f"{name}: {_explained(path, text, error)}") from None


def writable_or_why(path: Path) -> tuple[bool, str, str]:
    """Return (writable, reason why not, remedy). Asks the kernel without writing."""
    if os.access(path, os.W_OK):
        return True, "", ""
    if not path.exists():
        return False, f"{path} is gone", ""
    if user_id() == 0:
        return (
            False,
            f"{path} is read-only, even for root",
            "in a container mount the host's /sys writable and set WATTLOOP_SYSFS_ROOT",
        )
    return False, f"{path} is writable by root only", f"run as root, or 'sudo chmod a+w {path}'"


def _explained(path: Path, text: str, error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        _, reason, remedy = writable_or_why(path)
        reason = reason or f"the kernel does not allow writing {path}"
        return f"{reason}; {remedy}" if remedy else reason
    if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
        return f"{path} is gone: the device or its driver has been removed"
    return f"the kernel refuses {text!r} for {path}: {error.strerror}"


def _unreadable(name: str, path: Path) -> str:
    if not path.exists():
        return f"{name}: {path} is gone: the device or its driver has been removed"
    return f"{name}: {path} holds no number but {read_text(path)!r}"
