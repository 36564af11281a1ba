"""The machine: the roots of its /sys and /proc, and the small files of its kernel."""

import errno
import math
import os
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from wattloop.core.files import CLOSE_ON_EXEC
from wattloop.core.records import Gap


class Host:
    """Roots of the kernel's file trees. In a container the host's are mounted elsewhere."""

    def __init__(self, sysfs: Path = Path("/sys"), procfs: Path = Path("/proc")) -> None:
        self.sysfs = sysfs
        self.procfs = procfs

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> "Host":
        """Return roots named by `WATTLOOP_SYSFS_ROOT` and `WATTLOOP_PROCFS_ROOT`."""
        env = os.environ if environment is None else environment
        return cls(
            sysfs=Path(env.get("WATTLOOP_SYSFS_ROOT") or "/sys"),
            procfs=Path(env.get("WATTLOOP_PROCFS_ROOT") or "/proc"),
        )

    @property
    def elsewhere(self) -> bool:
        """True if the trees are not those of this machine's kernel."""
        return (self.sysfs, self.procfs) != (Path("/sys"), Path("/proc"))

    @cached_property
    def name(self) -> str:
        import platform  # `os.uname` is missing on Windows

        return platform.node() or "localhost"

    @cached_property
    def boot_id(self) -> str:
        """Changes at every boot; monotonic times of different boots cannot be compared."""
        return self.read_text("proc", "sys/kernel/random/boot_id") or ""

    @cached_property
    def machine_id(self) -> str:
        """Stable identity of the machine, for idle lines stored per machine."""
        for candidate in (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id")):
            try:
                text = candidate.read_text().strip()
            except OSError:
                continue
            if text:
                return text
        return self.name

    def read_text(self, tree: str, relative: str) -> str | None:
        """Stripped content of a file below a root (`sys` or `proc`); None if unreadable."""
        root = self.sysfs if tree == "sys" else self.procfs
        try:
            return (root / relative).read_text(errors="replace").strip()
        except OSError:
            return None


LONGEST_NUMBER = 20
"""Digits of the largest 64-bit number; a longer text is not a number of the kernel."""


def read_text(path: Path) -> str:
    """Return the stripped content; empty when the file is missing or not readable."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def read_whole(path: Path) -> int | None:
    """Return the whole number in a file; None when it holds anything else or cannot be read."""
    return whole_number(read_text(path))


def whole_number(text: str | None) -> int | None:
    """`42` as a number; None for a sign, a fraction, words or nothing."""
    # `isdigit` alone also takes characters such as superscripts, which `int` refuses.
    good = text and len(text) <= LONGEST_NUMBER and text.isascii() and text.isdigit()
    return int(text) if text and good else None


_LONGEST = 32
"""More bytes than any 64-bit number has digits."""
_ASLEEP = (errno.EBUSY, errno.EPERM, errno.EAGAIN)
"""Errors of drivers for a device in runtime suspend, once the file is open."""


class NumberFile:
    """Reads one whole number in one system call.

    Survives everything: replaced by a rename, truncated while being rewritten, unreadable for a
    while. Each of those is a `Gap` at most, and the next read tries again. A file that is gone or
    may not be opened is `lost` until a read succeeds.

    Args:
        path: the file.
        signed: whether a negative number is a reading; for counters it is a fault.
    """

    __slots__ = ("_fd", "_last", "_signed", "path")

    def __init__(self, path: Path, signed: bool = False) -> None:
        self.path = path
        self._signed = signed
        self._fd = -1
        self._last = b""

    def read(self) -> float | Gap:
        """The number the file holds now."""
        try:
            data = self._fresh()
        except FileNotFoundError:
            self.close()
            return Gap(f"{self.path} is gone", lost=True)
        except OSError as error:
            if self._fd < 0 and isinstance(error, PermissionError):
                return Gap(f"{self.path}: permission denied", lost=True)
            if error.errno not in _ASLEEP:
                self.close()
            return Gap(f"{self.path}: {error.strerror or error}")
        return self._number(data.strip())

    def sample(self) -> bytes | float | Gap:
        """Return the file's text if one call is enough, else the result of `read`."""
        try:
            data = os.pread(self._fd, _LONGEST, 0)
        except OSError:  # not open, or trouble: the long way finds out
            return self.read()
        if not data or (data == self._last and os.fstat(self._fd).st_nlink == 0):
            return self.read()
        self._last = data
        return data

    def decoded(self, sampled: bytes | float | Gap) -> float | Gap:
        return self._number(sampled.strip()) if isinstance(sampled, bytes) else sampled

    def refusal(self) -> str:
        """Return why the file cannot be opened and read; empty when it can.

        A file that opens but holds no number at this moment, or whose device is asleep, is not
        refused: its readings are gaps until it does.
        """
        reading = self.read()
        opened = self._fd >= 0
        self.close()
        return reading.reason if isinstance(reading, Gap) and not opened else ""

    def close(self) -> None:
        """Close the file; a later read opens it again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _fresh(self) -> bytes:
        if self._fd < 0:
            self._open()
        data = os.pread(self._fd, _LONGEST, 0)
        # An unchanged value may mean that the file was replaced: ours then has no name left.
        if data == self._last and os.fstat(self._fd).st_nlink == 0:
            self._open()
            data = os.pread(self._fd, _LONGEST, 0)
        if not data:
            # Caught between truncation and write: look once more.
            data = os.pread(self._fd, _LONGEST, 0)
        self._last = data
        return data

    def _open(self) -> None:
        self.close()
        self._fd = os.open(self.path, os.O_RDONLY | CLOSE_ON_EXEC)

    def _number(self, digits: bytes) -> float | Gap:
        negative = digits[:1] == b"-"
        if digits[negative:].isdigit() and (self._signed or not negative):
            return int(digits)
        if not digits:
            return Gap(f"{self.path} is empty")
        what = "a negative number" if negative else "no number"
        return Gap(f"{self.path} holds {what}: {digits.decode(errors='replace')!r}")


class DecimalFile(NumberFile):
    """The same for files of other programs, which may write `12.5`."""

    __slots__ = ()

    def _number(self, digits: bytes) -> float | Gap:
        try:
            value = float(digits)
        except ValueError:
            return super()._number(digits)
        if not math.isfinite(value):
            return Gap(f"{self.path} holds {value}")
        if value < 0 and not self._signed:
            return Gap(f"{self.path} holds a negative number: {value:g}")
        return value


HWMON = "class/hwmon"


class Chip(NamedTuple):
    """One hwmon directory: its driver's name and its files."""

    name: str
    directory: Path

    def text(self, leaf: str) -> str:
        """Stripped content of one of its files; empty when unreadable."""
        return read_text(self.directory / leaf)

    def channels(self, pattern: str) -> Iterator[tuple[int, Path]]:
        """Files such as `energy*_input`, with the number in the star's place, in its order."""
        before, _, after = pattern.partition("*")
        expression = re.compile(re.escape(before) + r"(\d+)" + re.escape(after))
        found = []
        for path in _files(self.directory):
            match = expression.fullmatch(path.name)
            if match:
                found.append((int(match.group(1)), path))
        yield from sorted(found)


def find_chips(host: Host) -> list[Chip]:
    """Every chip, in the order of their numbers (which a reboot may change)."""
    chips = []
    for directory in _files(host.sysfs / HWMON):
        chip = Chip("", directory)
        # Old drivers keep their files one level down.
        name = chip.text("name") or chip.text("device/name")
        if name:
            home = directory if chip.text("name") else directory / "device"
            chips.append(Chip(name, home))
    return sorted(chips, key=lambda chip: _number(chip.directory))


def _files(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def _number(directory: Path) -> int:
    match = re.search(r"hwmon(\d+)", str(directory))
    return int(match.group(1)) if match else 0
