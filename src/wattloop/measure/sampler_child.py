"""Main program of the sampler process: meters, a sampler, and a pipe to the measured program.

The process has its own session without a terminal and holds none of the program's files. It ends
when the program closes its pipe or has ended, for example by `kill -9`.
"""

import os
import select
import signal
import sys
from array import array
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from wattloop.core.records import Gap
from wattloop.core.settings import Settings
from wattloop.hardware.host import Host
from wattloop.measure.meter_stream import STAMP_SLACK_S, MeterStream, domain_sources
from wattloop.measure.recovery import append_unsent_samples
from wattloop.measure.run_journal import SIGNALS_FEED_OFFSET
from wattloop.measure.sampler import Sampler
from wattloop.measure.sampler_process import ALIVE_FRAME, DATA_FD, STOP
from wattloop.meters.base import Context
from wattloop.meters.registry import detect
from wattloop.store.journal import EVENT, HEADER, json_frame, samples_frame
from wattloop.version import __version__

TOGETHER_S = 0.09
"""Readings are sent at most this often: each message costs both sides more than a reading."""
KEPT_B = 256 * 1024
"""Length of the history of sent readings; older ones are certain to be in the program's journal."""
LOOK_S = 0.5
"""Interval of checks that the program is alive, where the kernel does not notify."""
DYING_S = 5.0
"""Longest wait for a killed program to end. One that executes another program closes its pipe too,
and lives on."""
BACKLOG_LIMIT_B = 16 * 1024 * 1024
"""Limit of the buffer for a program that does not collect, because it is stopped or busy."""
DEAF_TO = (signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))
"""Signals sent to a whole job to end it; this process ends when the program does."""


def main(order: dict[str, Any]) -> NoReturn:
    """Read until the program ends or asks to stop."""
    if order["version"] != __version__:
        os._exit(1)  # upgraded while the program runs: its thread continues to read
    _settle_down(order)
    end = _End(int(order["program"]))
    work = _Work(order)
    work.start()
    asked = end.wait()
    work.stop()
    if not asked and order["journal"]:
        append_unsent_samples(order["job_id"], order["run_id"], Path(order["journal"]), work.sent)
    os._exit(0)  # nothing is left to do, whatever threads of drivers still run


def _settle_down(order: dict[str, Any]) -> None:
    """Close all inherited files but the two pipes."""
    for number in DEAF_TO:
        signal.signal(number, signal.SIG_IGN)
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers, not paths
        if int(name) > DATA_FD:
            with suppress(OSError):  # the descriptor of the listing itself
                os.close(int(name))
    os.set_blocking(DATA_FD, False)
    os.set_blocking(sys.stdin.fileno(), False)
    with suppress(OSError):
        os.chdir(order["cwd"])


class _End:
    """The end of the program: its pipe is closed, or the process has ended."""

    def __init__(self, program: int) -> None:
        self._program = program
        self._waiting = select.poll()
        self._waiting.register(sys.stdin.fileno(), select.POLLIN)
        self._look_s: float | None = LOOK_S
        self._ended: int | None = None
        with suppress(OSError, AttributeError):
            # A worker forked from the program may hold copies of its pipe; the pidfd reports the
            # end anyway.
            self._ended = os.pidfd_open(program)
            self._waiting.register(self._ended, select.POLLIN)
            self._look_s = None

    def wait(self) -> bool:
        """Wait for the end; return True if the program asked for it, False if it disappeared."""
        timeout_ms = None if self._look_s is None else self._look_s * 1_000
        while not self._waiting.poll(timeout_ms):
            try:
                os.kill(self._program, 0)
            except ProcessLookupError:
                break
        asked = STOP in (sys.stdin.buffer.read() or b"")
        if not asked and self._ended is not None:
            # The kernel closes the files of a killed program one after another: its pipe may be
            # closed while it still holds the locks that the last readings need.
            dying = select.poll()
            dying.register(self._ended, select.POLLIN)
            dying.poll(DYING_S * 1_000)
        return asked


class _Work:
    """Streams with their numbers in the program, and readings to be sent."""

    def __init__(self, order: dict[str, Any]) -> None:
        sysfs, procfs = order["roots"]
        context = Context(Host(Path(sysfs), Path(procfs)), settings_from(order["settings"]))
        self._feeds = _feeds(context, order["feeds"])
        # Fusion and update clocks are found as in the program.
        domain_sources([feed for feed, _ in self._feeds], context.settings.devices)
        self._events: list[bytes] = []
        self._backlog: deque[bytes] = deque()
        self._backlog_b = 0
        self.sent: deque[bytes] = deque()
        self._sent_b = 0
        self._sent_s = 0.0
        reads = [feed for feed, wish in self._feeds if wish["read"]]
        signals = [feed for feed, wish in self._feeds if wish["signals"]]
        for feed, _ in self._feeds:
            feed.widest_s = STAMP_SLACK_S
            _listen(feed, self._events)
        self._hello = {
            "pid": os.getpid(),
            "reads": [feed.index for feed in reads],
            "signals": [feed.index for feed in signals],
        }
        self._sampler = Sampler(
            reads,
            signals,
            context.clock,
            float(order["interval_s"]),
            in_process=False,
            adaptive=bool(order["adaptive"]),
            on_flush=lambda: self.flush(context.clock.now_s()),
            on_fault=self._fault,
        )
        self._sampler.on_readings = self._after_readings

    def start(self) -> None:
        """Send the first reading with the hello, so that nothing is missed between two readers."""
        for feed, wish in self._feeds:
            if wish["read"]:
                feed.read()
        self._send(json_frame(HEADER, self._hello))
        self._sampler.start()

    def flush(self, now_s: float) -> None:
        """Send the readings and a sign of life; drop old history."""
        self._send(ALIVE_FRAME)
        for feed, _ in self._feeds:
            feed.thin_before(now_s)

    def stop(self) -> None:
        self._sampler.stop(timeout_s=1.0)
        self._send(b"")

    def _after_readings(self, now_s: float) -> None:
        if now_s - self._sent_s >= TOGETHER_S:
            self._sent_s = now_s
            self._send(b"")

    def _send(self, last: bytes) -> None:
        """Send frames; gaps go before the readings that they explain."""
        samples = [frame for feed, _ in self._feeds for frame in _drained(feed)]
        events, self._events[:] = list(self._events), []
        data = b"".join((*events, *samples, last))
        if not data:
            return
        self._remember(data)
        self._backlog.append(data)
        self._backlog_b += len(data)
        try:
            while self._backlog:
                written = os.write(DATA_FD, self._backlog[0])
                self._backlog_b -= written
                rest = self._backlog.popleft()[written:]
                if rest:
                    self._backlog.appendleft(rest)
        except OSError:  # the program is stopped, does not read its pipe, or has ended
            if self._backlog_b > BACKLOG_LIMIT_B:
                os._exit(1)  # the program's own thread will read again as soon as it can

    def _remember(self, data: bytes) -> None:
        self.sent.append(data)
        self._sent_b += len(data)
        while self._sent_b > KEPT_B and len(self.sent) > 1:
            self._sent_b -= len(self.sent.popleft())

    def _fault(self, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        self._events.append(json_frame(EVENT, {"type": "fault", "text": text}))


def settings_from(values: dict[str, Any]) -> Settings:
    """Convert settings back from JSON, which has lists for tuples."""
    plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    return Settings(**plain)


def _feeds(
    context: Context, wishes: list[dict[str, Any]]
) -> list[tuple[MeterStream, dict[str, Any]]]:
    """Return this process's meter for each stream of the program that it finds too."""
    inventory = detect(context, explain=False)
    found = []
    for wish in wishes:
        for meter in inventory.meters:
            names = [domain.name for domain in meter.domains]
            signals = [s.name for s in meter.signals]
            same = (meter.name, names) == (wish["meter"], wish["domains"])
            if same and signals == wish["signal_names"]:
                found.append((MeterStream(meter, context.clock, wish["index"]), wish))
                break
    return found


def _listen(feed: MeterStream, events: list[bytes]) -> None:
    numbers = {domain.name: i for i, domain in enumerate(feed.domains)}

    def gap(time_s: float, domain: str, gap: Gap) -> None:
        event = {"type": "gap", "reason": gap.reason, "lost": gap.lost}
        place = {"feed": feed.index, "domain": numbers[domain], "time_s": time_s}
        events.append(json_frame(EVENT, {**event, **place}))

    def tick(domain: int, after_s: float, by_s: float) -> None:
        event = {"type": "tick", "feed": feed.index, "domain": domain}
        events.append(json_frame(EVENT, {**event, "after_s": after_s, "by_s": by_s}))

    feed.on_gap, feed.on_tick = gap, tick


def _drained(feed: MeterStream) -> list[bytes]:
    frames: list[bytes] = []
    times_s, values, signal_times_s, signal_values = feed.drained()
    parts: tuple[tuple[int, int, array[float], array[float]], ...] = (
        (feed.index, len(feed.domains), times_s, values),
        (feed.index + SIGNALS_FEED_OFFSET, len(feed.signals), signal_times_s, signal_values),
    )
    for number, width, times, numbers in parts:
        if times:
            frames.append(samples_frame(number, width, times, numbers))
    return frames
