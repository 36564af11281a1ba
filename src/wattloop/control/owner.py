"""Who holds a device: enough to name them, and to tell whether they still live."""

import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wattloop.hardware.host import Host

__all__ = ["Owner", "group_ids", "user_name"]

PROC = Path("/proc")
"""Process numbers are those of our own namespace, whatever WATTLOOP_PROCFS_ROOT says."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, told apart from a later one with the same number by its start.

    Attributes:
        pid: its number.
        started: clock ticks after boot at which it started.
        boot_id: the boot it belongs to.
        command: its command line, shortened.
        user: who runs it.
        since: seconds since 1970 at which it took hold.
        namespace: of its number; in another container the same number is somebody else.
    """

    pid: int
    started: int
    boot_id: str
    command: str
    user: str
    since: float
    namespace: str = ""

    @classmethod
    def this_process(cls) -> "Owner":
        """Us."""
        pid = os.getpid()
        command = " ".join([Path(sys.argv[0] or "python").name, *sys.argv[1:]])[:120]
        user = user_name(os.geteuid())
        return cls(pid, _started(pid), Host().boot_id, command, user, time.time(), _namespace())

    @classmethod
    def from_dict(cls, data: Any) -> "Owner | None":
        """What `to_dict` gave; None for anything else."""
        try:
            return cls(
                int(data["pid"]),
                int(data["started"]),
                str(data["boot_id"]),
                _printable(data["command"]),
                _printable(data["user"]),
                float(data["since"]),
                str(data.get("namespace", "")),
            )
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            return None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @property
    def alive(self) -> bool:
        """Whether the process still runs. A zombie does not: its locks are gone.

        One of another container may, as far as we can see: whether it holds its lock decides.
        """
        if self.boot_id != Host().boot_id:
            return False
        return self._elsewhere or _started(self.pid) == self.started

    def __str__(self) -> str:
        where = " in another container" if self._elsewhere else ""
        return f"process {self.pid} ({self.command}) of {self.user}{where}, since {self._since()}"

    @property
    def _elsewhere(self) -> bool:
        return self.namespace not in ("", _namespace())

    def _since(self) -> str:
        try:
            return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        except (OverflowError, OSError, ValueError):
            return "an unknown time"


def _started(pid: int) -> int:
    """0 when there is no such process."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return 0
    fields = text.rpartition(")")[2].split()
    return 0 if fields[0] in ("Z", "X") else int(fields[19])


def _namespace() -> str:
    """Of process numbers; empty where the kernel does not say."""
    try:
        return str((PROC / "self/ns/pid").readlink())
    except OSError:
        return ""


def _printable(text: Any) -> str:
    """Anybody can write a lock file, and what is in it reaches a terminal."""
    return "".join(c if c.isprintable() else "?" for c in str(text))[:200]


def user_name(uid: int) -> str:
    """As people know it."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def group_ids(uid: int) -> frozenset[int]:
    """Groups of a user; empty for an unknown one."""
    import pwd

    try:
        user = pwd.getpwuid(uid)
        return frozenset(os.getgrouplist(user.pw_name, user.pw_gid))
    except (KeyError, OSError):
        return frozenset()
