"""Who has a lock, by the kernel's own table: what a lock file says may be anybody's word."""

import os
import time
from pathlib import Path
from typing import NamedTuple

from wattloop.control.owner import user_name
from wattloop.core.units import format_duration

__all__ = ["LockHolder", "lock_holder"]

PROC = Path("/proc")


class LockHolder(NamedTuple):
    """A process that has a file locked.

    Attributes:
        pid: its number.
        user: who runs it.
        uid: number of that user.
        command: its command line, shortened.
        for_s: how long it has been running; it has the lock for no longer.
    """

    pid: int
    user: str
    uid: int
    command: str
    for_s: float

    def __str__(self) -> str:
        return (
            f"process {self.pid} ({self.command}) of {self.user}, which runs for "
            f"{format_duration(self.for_s)}"
        )


def lock_holder(path: Path) -> LockHolder | None:
    """Who has the `flock` of a file; None when nobody does, or in a container we cannot look into.

    Linux lists in /proc/locks: `1: FLOCK  ADVISORY  WRITE 1234 08:01:5678 0 EOF`.
    """
    try:
        file = path.stat()
        lines = (PROC / "locks").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    for line in lines:
        words = line.split()
        # a line with an arrow is of somebody who waits for it
        if len(words) < 6 or words[1] != "FLOCK" or not words[4].isdigit():
            continue
        if words[5].rpartition(":")[2] == str(file.st_ino):
            found = _process(int(words[4]), path)
            if found is not None:
                return found
    return None


def _process(pid: int, path: Path) -> LockHolder | None:
    """The process, if it is there and has this very file open, as far as we may look."""
    place = PROC / str(pid)
    try:
        uid = place.stat().st_uid
        words = (place / "cmdline").read_bytes().decode(errors="replace").split("\0")
        ticks = float((place / "stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None
    if not _has_open(place, path):
        return None
    command = " ".join([Path(words[0]).name, *words[1:]]).strip()[:120] or "?"
    shown = "".join(c if c.isprintable() else "?" for c in command)
    for_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return LockHolder(pid, user_name(uid), uid, shown, max(for_s, 0.0))


def _has_open(place: Path, path: Path) -> bool:
    """No where it certainly has not: an inode number is unique on one file system only."""
    try:
        return any(_same(link, path) for link in (place / "fd").iterdir())
    except OSError:
        return True  # another user's process: we may not look


def _same(link: Path, path: Path) -> bool:
    try:
        return link.samefile(path)
    except OSError:
        return False
