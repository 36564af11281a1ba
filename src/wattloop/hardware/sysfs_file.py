"""Files of the kernel: small texts, and numbers that are read repeatedly."""

import errno
import math
import os
from pathlib import Path

from wattloop.core.records import Gap

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
        """The number in what `sample` took."""
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
        self._fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)

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
