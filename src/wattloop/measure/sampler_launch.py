"""Starts the sampling process: what it is told, and with what it begins.

It is spawned, not forked, in a session of its own and with none of the program's files.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from wattloop.measure.feeds import MeterFeed
from wattloop.store.frames import pack_frame
from wattloop.version import __version__

__all__ = ["ALIVE_FRAME", "DATA_FD", "STOP", "Order", "Started", "start", "why_impossible"]

BOOT = """
import os, sys
if os.fork():
    os._exit(0)
import json
order = json.loads(sys.stdin.buffer.readline())
sys.path[:] = order["path"]
from wattloop.measure.sampler_child import main
main(order)
"""
DATA_FD = 3
"""Where the process finds its end of the pipe; the order comes on its standard input."""
LOWEST_FD = 10
STOP = b"stop\n"
"""Said before the pipe is closed; a pipe that closes without it belongs to a program that died."""
ALIVE_FRAME = pack_frame(b"A", b"")


class Order(NamedTuple):
    """What the process is to do.

    Attributes:
        settings: the run's own, as plain values; only the meters that are needed.
        roots: of sysfs and procfs.
        feeds: those to be read, by their number in this run.
        signal_feeds: those whose signals are to be read.
        environment, cwd: as they were when the run began.
        run_id, job_id, journal: of this run, whose journal is completed if the program dies.
    """

    settings: Mapping[str, Any]
    roots: tuple[str, str]
    interval_s: float
    adaptive: bool
    feeds: Sequence[MeterFeed]
    signal_feeds: Sequence[MeterFeed]
    environment: Mapping[str, str]
    cwd: str
    run_id: str
    job_id: str
    journal: Path | None

    def to_bytes(self) -> bytes:
        """One line; passwords in the settings stay off the command line."""
        feeds = {feed.index: feed for feed in (*self.feeds, *self.signal_feeds)}
        read, signals = _numbers(self.feeds), _numbers(self.signal_feeds)
        order = {
            "version": __version__,
            "path": [_from(self.cwd, folder) for folder in sys.path],
            "cwd": self.cwd,
            "program": os.getpid(),
            "settings": dict(self.settings),
            "roots": [str(Path(self.cwd, root)) for root in self.roots],
            "interval_s": self.interval_s,
            "adaptive": self.adaptive,
            "run_id": self.run_id,
            "job_id": self.job_id,
            "journal": None if self.journal is None else str(self.journal.absolute()),
            "feeds": [
                {**_layout(f), "index": i, "read": i in read, "signals": i in signals}
                for i, f in feeds.items()
            ],
        }
        return json.dumps(order, default=str).encode() + b"\n"


def why_impossible() -> str:
    """Why no process can be started from this interpreter; empty when one can."""
    name = Path(sys.executable or "").name
    if getattr(sys, "frozen", False) or not name.startswith(("python", "pypy")):
        return f"{sys.executable or 'this program'} is not a Python interpreter"
    if not hasattr(os, "posix_spawn"):
        return "this system has no posix_spawn"
    return ""


class Started(NamedTuple):
    """A process that is on its way, and our ends of its pipes."""

    pid: int
    control_fd: int
    data_fd: int


def start(order: Order) -> Started:
    """Spawn it and hand it the order.

    Raises:
        OSError, NotImplementedError: no process may be started here.
    """
    line = order.to_bytes()
    opened: list[int] = []
    try:
        theirs_in, control_fd = _pipe(opened)
        data_fd, theirs_out = _pipe(opened)
        flags = [
            *(["-E"] if sys.flags.ignore_environment else []),
            *(["-S"] if sys.flags.no_site else []),
        ]
        # The last word is for people who wonder what this process is.
        words = ["-P", *flags, "-c", BOOT, f"wattloop sampler of {os.getpid()}"]
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, *words],
            order.environment,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, theirs_in, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_DUP2, theirs_out, DATA_FD),
            ],
            setsid=True,
            setsigmask=(),
            # What the program ignores is at its default in a process of ours.
            setsigdef=[signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGHUP],
        )
        os.set_blocking(control_fd, False)
        os.set_blocking(data_fd, False)
        if os.write(control_fd, line) != len(line):
            raise OSError(errno.EMSGSIZE, "the order does not fit into a pipe")
        opened = [theirs_in, theirs_out]
        return Started(pid, control_fd, data_fd)
    finally:
        for fd in opened:
            os.close(fd)


def _pipe(opened: list[int]) -> tuple[int, int]:
    """(read, write) ends that no file action can tread on, also where standard input is closed."""
    ends = []
    for fd in os.pipe():
        ends.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, LOWEST_FD))
        opened.append(ends[-1])
        os.close(fd)
    return ends[0], ends[1]


def _from(cwd: str, folder: str) -> str:
    """An entry of `sys.path` that means the same elsewhere; those of import hooks stay as is."""
    path = Path(cwd, folder)
    return str(path) if path.exists() else folder


def _numbers(feeds: Sequence[MeterFeed]) -> frozenset[int]:
    return frozenset(feed.index for feed in feeds)


def _layout(feed: MeterFeed) -> dict[str, Any]:
    return {
        "meter": feed.meter.name,
        "domains": [domain.name for domain in feed.domains],
        "signal_names": [signal.name for signal in feed.signals],
    }
