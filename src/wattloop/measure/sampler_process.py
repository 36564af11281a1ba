"""A process of our own that reads the sensors beside the program that measures itself.

A thread takes the program's processor and its interpreter lock ten times a second. A process takes
neither: the program only collects, twice a second, what has arrived, and goes on writing its
journal itself. When the process dies, the thread reads again as if it had never been there.

It ends by itself when the program does, whatever ends that (`sampler_launch`, `sampler_child`), and
is not a child of the program, which may wait for children of its own.
"""

from __future__ import annotations

import json
import os
import select
import signal
import threading
import time
from contextlib import suppress
from typing import Any

from wattloop.core.records import Gap
from wattloop.measure.run_journal import SIGNALS_FEED_OFFSET
from wattloop.measure.sampler_launch import STOP, Order, start
from wattloop.store.frames import (
    EVENT,
    HEADER,
    SAMPLES,
    SampleBlock,
    block_from,
    frames_in,
)

__all__ = ["SamplerProcess"]

SILENT_S = 5.0
"""The process says something twice a second; silent for longer, it is stopped or hangs."""
CHUNK_B = 1 << 20


class SamplerProcess:
    """The program's end: what has arrived goes into the feeds. Safe from any thread.

    Raises:
        OSError, NotImplementedError: no process may be started here.
    """

    def __init__(self, order: Order) -> None:
        self._wanted = {feed.index: feed for feed in (*order.feeds, *order.signal_feeds)}
        self._gaps: dict[tuple[int, int], Gap] = {}
        self._lock = threading.Lock()
        self._rest = b""
        self._heard_s = time.monotonic()
        self.pid = 0
        """Known once it has said hello."""
        self.reads: frozenset[int] = frozenset()
        """Numbers of the feeds that it reads, once it does."""
        self.signals: frozenset[int] = frozenset()
        self.fault = ""
        self._starter, self._control_fd, self._data_fd = start(order)

    @property
    def alive(self) -> bool:
        """Whether more may come."""
        return self._data_fd >= 0

    def collect(self) -> None:
        """Put what has arrived into the feeds; notice when there will be no more."""
        if not self.alive or not self._lock.acquire(blocking=False):
            return
        try:
            self._collect()
        except Exception as error:  # noqa: BLE001 - the program asks for energy, not for our faults
            self._end(f"not understood: {type(error).__name__}: {error}")
        finally:
            self._lock.release()

    def check(self) -> bool:
        """Now and then: whether it still does its work; one that does not is let go."""
        self.collect()
        self._reap()
        if self.alive and time.monotonic() - self._heard_s > SILENT_S:
            with self._lock:
                self._end(f"silent for more than {SILENT_S:g} s")
        return self.alive

    def stop(self, patience_s: float) -> None:
        """Ask it to end, and take what it still has to say."""
        waiting = select.poll()
        with self._lock:
            if not self.alive:
                return
            with suppress(OSError):  # it has died meanwhile
                os.write(self._control_fd, STOP)
            self._close_control()
            if not self.pid:  # it is still starting, and finds nobody when it has
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
        """In a forked child: close our copies; the program goes on with it."""
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
        """Let go of it, holding the lock; one that still lives is killed."""
        if not self.alive:
            return
        self.fault = self.fault or why
        self._close_control()
        self._close_data()
        if self.pid and why != "ended":
            with suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)

    def _reap(self) -> None:
        """The starter ends at once; the process is our child only where we inherit orphans."""
        for pid in (self._starter, 0 if self.alive else self.pid):
            if not pid:
                continue
            try:
                done = os.waitpid(pid, os.WNOHANG)[0]
            except OSError:  # not ours, or somebody has waited for all children
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
