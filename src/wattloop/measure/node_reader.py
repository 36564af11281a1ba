"""Reader of a node's meters for one run: streams, leader role, and sampling thread or process.

The thread of a `Sampler` takes the readings. In a program that measures itself for more than a
moment, a separate process takes them over (`sampler_process`), and the thread only collects.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from wattloop.measure.domain_source import DomainSource, domain_sources
from wattloop.measure.job import Job
from wattloop.measure.meter_stream import MeterStream
from wattloop.measure.node_leader import LeaderRole
from wattloop.measure.sampler import TICK_SEARCH_LIMIT_S, Sampler
from wattloop.meters.base import Context
from wattloop.meters.registry import Inventory

if TYPE_CHECKING:
    from wattloop.measure.sampler_process import SamplerProcess

CHANGE_LIMIT_S = 0.05
"""Time that `wattloop run` waits at the edges of a run for a counter to change."""
LAST_WAIT_S = 0.2
"""Time that the end of a run waits for a slow sensor to change once more."""
HANG_S = 2.0
"""A meter that takes longer for its last reading hangs, and is abandoned."""
PROCESS_AFTER_S = 1.0
"""Shorter measurements are read by the thread: a process would cost more than it saves."""
PROCESS_LAST_S = 0.5


class NodeReader:
    """Streams and domain sources of one run, and their reader.

    Args:
        in_process: whether this process is the one being measured.
        separate_process: whether a sampler process may be started; not with an injected clock or
            machine.
        note: called with messages for the user.
    """

    def __init__(
        self,
        context: Context,
        inventory: Inventory,
        *,
        run_id: str,
        job: Job | None,
        in_process: bool,
        separate_process: bool,
        note: Callable[[str], None],
    ) -> None:
        self._context = context
        self._inventory = inventory
        self._in_process = in_process
        self._note = note
        self.feeds = [
            MeterStream(meter, context.clock, i) for i, meter in enumerate(inventory.meters)
        ]
        self.channels: list[DomainSource] = domain_sources(self.feeds, context.settings.devices)
        self.used = self._used_feeds()
        self.edge_feeds = [feed for feed in self.used if feed.cheap_at_edges]
        self.role = LeaderRole(run_id, job)
        self._sampler: Sampler | None = None
        self._process: SamplerProcess | None = None
        self._process_due_s = (
            context.clock.now_s() if self._may_start(separate_process) else float("inf")
        )
        self._environment = dict(os.environ) if separate_process else {}
        self._cwd = _cwd()
        self._run_id = run_id
        self._claim_name = run_id if job is None else job.claim_name
        self._journal: Path | None = None

    def first_readings(self) -> None:
        """Take readings before the beginning, so that it lies between two points of every curve."""
        if not self._in_process:
            for feed in self.used:
                feed.find_ticks(TICK_SEARCH_LIMIT_S, self._context.clock.sleep)
        for feed in self.used:
            feed.read()
        self._await_changes(self.used)

    def decide(self, journal: Path | None) -> None:
        """Try to become the node's leader for this run, or find the leader."""
        self._journal = journal
        self.role.decide(journal)

    def start(self, on_flush: Callable[[], None], on_fault: Callable[[Exception], None]) -> None:
        """Start reading in the background.

        Raises:
            RuntimeError: no thread can be started.
        """
        self.role.watch(self.feeds)
        read, signal_feeds, interval_s = self._share()
        self._sampler = Sampler(
            read,
            signal_feeds,
            self._context.clock,
            interval_s,
            in_process=self._in_process,
            tick_feeds=self.used,
            adaptive=self._adaptive,
            on_flush=on_flush,
            on_fault=on_fault,
        )
        if self._context.settings.sampler == "auto":
            self._process_due_s += PROCESS_AFTER_S
        self._sampler.start()

    def refresh(self) -> None:
        """Collect the readings of the sampler process."""
        if self._process is not None:
            self._process.collect()

    def flush(self, *, ending: bool = False) -> bool:
        """Do the periodic work; return True if the leader role changed."""
        changed = self.role.flush(self.feeds, ending=ending)
        moved = not ending and self._look_at_process()
        if (changed or moved) and self._sampler is not None:
            read, signal_feeds, interval_s = self._share()
            away = () if self._process is None else self._process.reads
            ticks = [feed for feed in self.used if feed.index not in away]
            self._sampler.replace_feeds(read, signal_feeds, interval_s, ticks)
        return changed

    def thin_before(self, time_s: float) -> None:
        """Downsample old points."""
        for feed in self.feeds:
            feed.thin_before(time_s)

    def stop(self, end_s: float) -> bool:
        """Take the last readings and stop; return False if a meter hangs.

        The sampler's thread takes them, so that a driver that hangs cannot stop the program from
        ending.
        """
        if self._sampler is None:
            return True
        patience_s = LAST_WAIT_S + HANG_S + (PROCESS_LAST_S if self._process else 0.0)
        return self._sampler.stop(lambda: self._last_readings(end_s), patience_s)

    def abandon(self) -> None:
        """In a forked child: drop everything without touching the parent's files."""
        for feed in self.feeds:
            feed.renew_lock()
            feed.meter.after_fork_in_child()
        self.role.forget()
        self._sampler = None
        if self._process is not None:
            self._process.forget()
            self._process = None

    @property
    def sampling_pid(self) -> int:
        """Pid of the sampler process, 0 without one."""
        process = self._process
        return process.pid if process is not None and process.alive else 0

    # -- inside ----------------------------------------------------------------------------

    @property
    def _adaptive(self) -> bool:
        # An interval that the user set is kept; the default adapts to the power.
        return "interval_s" not in self._context.settings.sources

    def _used_feeds(self) -> list[MeterStream]:
        """Return streams whose domains are selected, in the order of `feeds`."""
        used = {id(c.feed) for c in self.channels}
        used |= {id(c.shape_feed) for c in self.channels if c.shape_feed is not None}
        return [feed for feed in self.feeds if id(feed) in used]

    def _share(self) -> tuple[list[MeterStream], list[MeterStream], float]:
        """Return the part that this process's thread reads: streams, streams with signals, and the
        interval.
        """
        read = self.role.feeds_to_read(self.feeds, self.used)
        interval_s = self.role.interval_s(self._context.settings.interval_s, read)
        signal_feeds = self.feeds if self.role.counts else self.used
        process = self._process
        if process is not None and process.alive:
            read = [feed for feed in read if feed.index not in process.reads]
            signal_feeds = [feed for feed in signal_feeds if feed.index not in process.signals]
        return read, list(signal_feeds), interval_s

    def _last_readings(self, end_s: float) -> None:
        """Take readings after the end, so that it lies between two points of every curve."""
        clock = self._context.clock
        if self._process is not None:
            self._process.stop(PROCESS_LAST_S)
        used = self.role.feeds_to_read(self.feeds, self.used)
        slow_s = [d.update_period_s for f in used if f.slow for d in f.domains]
        if slow_s:
            wait_s = end_s + min(max(slow_s), LAST_WAIT_S) + 0.005 - clock.now_s()
            if wait_s > 0:
                clock.sleep(wait_s)
        for feed in used:
            feed.read()
        self._await_changes(used)

    def _await_changes(self, feeds: Sequence[MeterStream]) -> None:
        """Wait for the next update of fast counters, in `wattloop run` only."""
        if not self._in_process:
            for feed in feeds:
                feed.await_change(CHANGE_LIMIT_S, self._context.clock.sleep)

    # -- the sampler process ---------------------------------------------------------------

    def _may_start(self, separate_process: bool) -> bool:
        settings = self._context.settings
        if not (separate_process and self._in_process) or settings.sampler == "thread":
            return False
        away_s = sum(feed.cost_s for feed in self.used if feed.meter.shared)
        stays_s = sum(feed.cost_s for feed in self.used if not feed.meter.shared)
        # A process saves nothing where the thread still reads the costliest meters.
        return away_s > 0 and (away_s >= stays_s or settings.sampler == "process")

    def _look_at_process(self) -> bool:
        """Start the sampler process when it is due, or check it; return True if the readers have
        changed.
        """
        process = self._process
        if process is None:
            if self.role.counts and self._context.clock.now_s() >= self._process_due_s:
                self._process_due_s = float("inf")
                self._start_process()
            return False
        if not process.alive:
            return False
        read_before = process.reads
        if process.check():
            return process.reads != read_before
        if read_before:
            self._note(
                f"the process that read the sensors is gone ({process.fault}); "
                "a thread of the program reads them again"
            )
        return True

    def _start_process(self) -> None:
        from wattloop.measure.sampler_process import SamplerConfig, SamplerProcess, why_impossible

        settings, host = self._context.settings, self._context.host
        reads = [feed for feed in self.used if feed.meter.shared]
        signal_feeds = [feed for feed in self.feeds if self._signals_shared(feed)]
        names = {self._inventory.names[feed.index] for feed in (*reads, *signal_feeds)}
        order = SamplerConfig(
            {**settings._asdict(), "meters": sorted(names), "sources": {}},
            (str(host.sysfs), str(host.procfs)),
            settings.interval_s,
            self._adaptive,
            reads,
            signal_feeds,
            self._environment,
            self._cwd,
            self._run_id,
            self._claim_name,
            self._journal,
        )
        why = why_impossible()
        try:
            if not why:
                self._process = SamplerProcess(order)
        except (OSError, NotImplementedError, ValueError) as error:
            why = str(error)
        if why and settings.sampler == "process":
            self._note(f"no process can be started to read the sensors ({why}); a thread reads")

    def _signals_shared(self, feed: MeterStream) -> bool:
        """Return True if signals come from the same process as the readings, or are available
        elsewhere.
        """
        if not feed.signals:
            return False
        if feed in self.used:
            return feed.meter.shared
        return feed.meter.shared or feed.meter.shared_signals


def _cwd() -> str:
    try:
        return str(Path.cwd())
    except OSError:  # the working directory was removed
        return "/"
