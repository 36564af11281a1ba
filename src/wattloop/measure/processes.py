"""Who is whose child, read from the kernel's own /proc.

Process numbers are those of our own namespace, so this looks at /proc even where
`WATTLOOP_PROCFS_ROOT` names the host's.
"""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

__all__ = ["Orphans", "children", "descends_from", "is_stopped"]

PROC = Path("/proc")
FORGOTTEN_AFTER_S = 0.9
"""A thread that waits for its own helper program collects it within milliseconds."""


class Orphans:
    """Processes that the program started and abandoned: as its subreaper we inherit them.

    Ended ones must be collected or they fill the process table; but a meter may run a helper
    program of its own and wait for it, so only what nobody collects for a while is ours to take.
    """

    def __init__(self) -> None:
        self.program = 0
        """Process number of the program itself, whose end is somebody else's business."""
        self._before = frozenset(children())
        self._ended_at_s: dict[int, float] = {}

    @property
    def pending(self) -> bool:
        """Whether some have ended and wait to be collected."""
        return bool(self._ended_at_s)

    def living(self) -> list[int]:
        """Abandoned processes that still run and have work of their own."""
        return [
            pid
            for pid in children()
            if pid != self.program
            and pid not in self._before
            and _state(pid) not in ("Z", "X", "")
            and not _is_helper(pid)
        ]

    def reap(self) -> None:
        """Collect the ended ones that nobody else waits for."""
        now_s = time.monotonic()
        ended = {pid for pid in children() if pid != self.program and _state(pid) == "Z"}
        self._ended_at_s = {pid: self._ended_at_s.get(pid, now_s) for pid in ended}
        for pid, since_s in list(self._ended_at_s.items()):
            if now_s - since_s >= FORGOTTEN_AFTER_S:
                with suppress(ChildProcessError):  # its owner was quicker
                    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)
                del self._ended_at_s[pid]


def children() -> Iterator[int]:
    """Our direct children, ended ones included."""
    try:
        tasks = list((PROC / "self" / "task").iterdir())
    except OSError:
        return
    for task in tasks:
        try:
            text = (task / "children").read_text()
        except OSError:
            continue
        yield from map(int, text.split())


def descends_from(pid: int, ancestor: int) -> bool:
    """Whether `ancestor` started `pid`, directly or not."""
    while pid > 1:
        pid = _parent(pid)
        if pid == ancestor:
            return True
    return False


def is_stopped(pid: int) -> bool:
    """Whether job control holds the process."""
    return _state(pid) in ("T", "t")


def _is_helper(pid: int) -> bool:
    """Whether this is a resource tracker of Python, which ends with the last process it serves."""
    try:
        return b"resource_tracker" in (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return False


def _state(pid: int) -> str:
    fields = _stat(pid)
    return fields[0] if fields else ""


def _parent(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def _stat(pid: int) -> list[str]:
    """Fields from the state on; the name before them may hold spaces and brackets."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
