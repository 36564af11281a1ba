"""The sampler process, which reads the meters next to a program that measures itself."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from wattloop.core.records import Gap
from wattloop.measure.meter_stream import MeterStream
from wattloop.measure.run_journal import SIGNALS_FEED_OFFSET
from wattloop.store.journal import (
    EVENT,
    HEADER,
    SAMPLES,
    SampleBlock,
    block_from,
    frames_in,
    pack_frame,
)
from wattloop.version import __version__

# Start of the sampler process.
#
# It is spawned, not forked, with its own session and none of the program's files.

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
"""Descriptor of the process's end of the pipe; its configuration comes on standard input."""
LOWEST_FD = 10
STOP = b"stop\n"
"""Message before the pipe is closed; a pipe that closes without it belongs to a crashed program."""
ALIVE_FRAME = pack_frame(b"A", b"")


class SamplerConfig(NamedTuple):
    """Configuration of the sampler process.

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
    feeds: Sequence[MeterStream]
    signal_feeds: Sequence[MeterStream]
    environment: Mapping[str, str]
    cwd: str
    run_id: str
    job_id: str
    journal: Path | None

    def to_bytes(self) -> bytes:
        """Encode as one line; passwords in the settings stay off the command line."""
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
    """Return the reason why this interpreter cannot start a process; empty when it can."""
    name = Path(sys.executable or "").name
    if getattr(sys, "frozen", False) or not name.startswith(("python", "pypy")):
        return f"{sys.executable or 'this program'} is not a Python interpreter"
    if not hasattr(os, "posix_spawn"):
        return "this system has no posix_spawn"
    return ""


class StartedSampler(NamedTuple):
    """A process that is starting, and this side's ends of its pipes."""

    pid: int
    control_fd: int
    data_fd: int


def start(order: SamplerConfig) -> StartedSampler:
    """Spawn the process and send its configuration.

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
        # The last argument only explains the process in `ps`.
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
            # Signals that the program ignores have their default actions in the sampler process.
            setsigdef=[signal.SIGPIPE, signal.SIGTERM, signal.SIGINT, signal.SIGHUP],
        )
        os.set_blocking(control_fd, False)
        os.set_blocking(data_fd, False)
        if os.write(control_fd, line) != len(line):
            raise OSError(errno.EMSGSIZE, "the order does not fit into a pipe")
        opened = [theirs_in, theirs_out]
        return StartedSampler(pid, control_fd, data_fd)
    finally:
        for fd in opened:
            os.close(fd)


def _pipe(opened: list[int]) -> tuple[int, int]:
    """Return (read, write) ends above the standard descriptors, even with stdin closed."""
    ends = []
    for fd in os.pipe():
        import fcntl

        ends.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, LOWEST_FD))
        opened.append(ends[-1])
        os.close(fd)
    return ends[0], ends[1]


def _from(cwd: str, folder: str) -> str:
    """Return an entry of `sys.path` as an absolute path; those of import hooks stay as they are."""
    path = Path(cwd, folder)
    return str(path) if path.exists() else folder


def _numbers(feeds: Sequence[MeterStream]) -> frozenset[int]:
    return frozenset(feed.index for feed in feeds)


def _layout(feed: MeterStream) -> dict[str, Any]:
    return {
        "meter": feed.meter.name,
        "domains": [domain.name for domain in feed.domains],
        "signal_names": [signal.name for signal in feed.signals],
    }


# The program's side of the sampler process.
#
# A thread takes the program's processor and its interpreter lock ten times a second. A process
# takes neither: the program only collects readings twice a second, and still writes its journal
# itself. When the process dies, the thread reads again.
#
# The process ends when the program does, however that ends (`sampler_child`). It is not a child of
# the program, which may wait for its own children.

SILENT_S = 5.0
"""The process sends a message twice a second; without one for longer, it is stopped or hangs."""
CHUNK_B = 1 << 20


class SamplerProcess:
    """The program's side: received readings are added to the streams. Safe from any thread.

    Raises:
        OSError, NotImplementedError: no process may be started here.
    """

    def __init__(self, order: SamplerConfig) -> None:
        self._wanted = {feed.index: feed for feed in (*order.feeds, *order.signal_feeds)}
        self._gaps: dict[tuple[int, int], Gap] = {}
        self._lock = threading.Lock()
        self._rest = b""
        self._heard_s = time.monotonic()
        self.pid = 0
        """Known once the process has sent its hello."""
        self.reads: frozenset[int] = frozenset()
        """Numbers of the streams that the process reads."""
        self.signals: frozenset[int] = frozenset()
        self.fault = ""
        self._starter, self._control_fd, self._data_fd = start(order)

    @property
    def alive(self) -> bool:
        return self._data_fd >= 0

    def collect(self) -> None:
        """Add received readings to the streams; detect the end of the process."""
        if not self.alive or not self._lock.acquire(blocking=False):
            return
        try:
            self._collect()
        except Exception as error:  # noqa: BLE001 - the program asks for energy, not for our faults
            self._end(f"not understood: {type(error).__name__}: {error}")
        finally:
            self._lock.release()

    def check(self) -> bool:
        """Check occasionally that the process still works; kill it otherwise."""
        self.collect()
        self._reap()
        if self.alive and time.monotonic() - self._heard_s > SILENT_S:
            with self._lock:
                self._end(f"silent for more than {SILENT_S:g} s")
        return self.alive

    def stop(self, patience_s: float) -> None:
        """Ask the process to end, and collect its last readings."""
        waiting = select.poll()
        with self._lock:
            if not self.alive:
                return
            with suppress(OSError):  # it has died meanwhile
                os.write(self._control_fd, STOP)
            self._close_control()
            if not self.pid:  # it is still starting, and will find its pipe closed
                self._close_data()
                return
            waiting.register(self._data_fd, select.POLLIN)
        give_up_s = time.monotonic() + patience_s
        while self.alive and (left_s := give_up_s - time.monotonic()) > 0:
            if waiting.poll(left_s * 1_000):
                self.collect()
        with self._lock:
            self._end("did not end when asked")
        self._reap()

    def forget(self) -> None:
        """In a forked child: close the copies; the parent continues to use the process."""
        self._lock = threading.Lock()
        self._close_control()
        self._close_data()
        self._starter = self.pid = 0

    # -- arrivals --------------------------------------------------------------------------

    def _collect(self) -> None:
        ended = False
        while self.alive:
            try:
                data = os.read(self._data_fd, CHUNK_B)
            except BlockingIOError:
                break
            if not data:
                ended = True
                break
            self._rest += data
            self._heard_s = time.monotonic()
        used = 0
        for kind, payload, end in frames_in(self._rest):
            used = end
            if kind == SAMPLES:
                self._take(block_from(payload))
            elif kind == EVENT:
                self._event(json.loads(payload))
            elif kind == HEADER:
                self._hello(json.loads(payload))
        self._rest = self._rest[used:]
        if ended:
            self._end("ended")

    def _hello(self, hello: dict[str, Any]) -> None:
        self.pid = int(hello["pid"])
        self.reads = frozenset(hello["reads"]) & self._wanted.keys()
        self.signals = frozenset(hello["signals"]) & self._wanted.keys()

    def _take(self, block: SampleBlock) -> None:
        signals = block.feed >= SIGNALS_FEED_OFFSET
        number = block.feed - SIGNALS_FEED_OFFSET if signals else block.feed
        feed = self._wanted.get(number)
        if feed is None:
            return
        width = block.width
        with feed.lock:
            for i, time_s in enumerate(block.times_s):
                values = block.values[i * width : (i + 1) * width]
                if signals:
                    feed.arrive_signals(time_s, values)
                else:
                    readings = [
                        v if v == v else self._gap(number, k)  # noqa: PLR0124 - NaN is not itself
                        for k, v in enumerate(values)
                    ]
                    feed.arrive(time_s, readings)

    def _gap(self, number: int, i: int) -> Gap:
        return self._gaps.get((number, i)) or Gap("not read")

    def _event(self, event: dict[str, Any]) -> None:
        feed = self._wanted.get(event.get("feed", -1))
        if event["type"] == "gap":
            self._gaps[event["feed"], event["domain"]] = Gap(event["reason"], lost=event["lost"])
        elif event["type"] == "tick" and feed is not None:
            beat = feed.tick_clocks[event["domain"]]
            if beat is not None:
                with feed.lock:
                    beat.saw_change(event["after_s"], event["by_s"])
        elif event["type"] == "fault":
            self.fault = event["text"]

    # -- ending ----------------------------------------------------------------------------

    def _end(self, why: str) -> None:
        """Close the pipes, with the lock held; kill the process if it still runs."""
        if not self.alive:
            return
        self.fault = self.fault or why
        self._close_control()
        self._close_data()
        if self.pid and why != "ended":
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)

    def _reap(self) -> None:
        """Reap the starter; the process is a child only where this one is a subreaper."""
        for pid in (self._starter, 0 if self.alive else self.pid):
            if not pid:
                continue
            try:
                done = os.waitpid(pid, os.WNOHANG)[0]
            except OSError:  # not a child, or another thread has waited for all children
                done = pid
            if done and pid == self._starter:
                self._starter = 0

    def _close_control(self) -> None:
        if self._control_fd >= 0:
            os.close(self._control_fd)
            self._control_fd = -1

    def _close_data(self) -> None:
        if self._data_fd >= 0:
            os.close(self._data_fd)
            self._data_fd = -1
