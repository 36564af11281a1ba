"""Whose work a card does, so that the work of a killed process ends with it."""

import os
import time
from pathlib import Path
from typing import NamedTuple

__all__ = ["NOBODY", "Owner", "began_s", "this_process"]


class Owner(NamedTuple):
    """A process, known by its number and the moment it began: numbers are used again."""

    pid: float
    began: float

    @property
    def gone(self) -> bool:
        """Whether the process has ended; nobody never does."""
        return self.pid > 0 and _began(int(self.pid)) != self.began


NOBODY = Owner(0.0, 0.0)


def this_process() -> Owner:
    """The calling process."""
    pid = os.getpid()
    return Owner(float(pid), _began(pid) or 0.0)


def began_s() -> float:
    """When this process began, in seconds of `time.monotonic()`, to 10 ms."""
    since_boot_s = (_began(os.getpid()) or 0.0) / os.sysconf("SC_CLK_TCK")
    asleep_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    return min(time.monotonic(), since_boot_s - asleep_s)


def _began(pid: int) -> float | None:
    """Kernel ticks at which a process began; None when it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else float(fields[19])
