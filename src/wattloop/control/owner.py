"""Who holds a device: enough to name them, and to tell whether they still live."""

import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wattloop.hardware.host import Host

__all__ = ["Owner"]

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
    """

    pid: int
    started: int
    boot_id: str
    command: str
    user: str
    since: float

    @classmethod
    def this_process(cls) -> "Owner":
        """Us."""
        pid = os.getpid()
        command = " ".join([Path(sys.argv[0] or "python").name, *sys.argv[1:]])[:120]
        return cls(pid, _started(pid), Host().boot_id, command, _user(), time.time())

    @classmethod
    def from_dict(cls, data: Any) -> "Owner | None":
        """What `to_dict` gave; None for anything else."""
        try:
            return cls(
                int(data["pid"]),
                int(data["started"]),
                str(data["boot_id"]),
                str(data["command"]),
                str(data["user"]),
                float(data["since"]),
            )
        except (KeyError, TypeError, ValueError):
            return None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @property
    def alive(self) -> bool:
        """Whether the process still runs. A zombie does not: its locks are gone."""
        return self.boot_id == Host().boot_id and _started(self.pid) == self.started

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"process {self.pid} ({self.command}) of {self.user}, since {since}"


def _started(pid: int) -> int:
    """0 when there is no such process."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return 0
    fields = text.rpartition(")")[2].split()
    return 0 if fields[0] in ("Z", "X") else int(fields[19])


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return f"user {os.geteuid()}"
