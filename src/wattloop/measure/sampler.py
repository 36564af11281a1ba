"""Sampling: the thread that reads meters at an adaptive interval, and the reader of a node."""

from __future__ import annotations

import math
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from wattloop.core.clock import Clock
from wattloop.core.records import DomainKind
from wattloop.measure.energy_curve import plausible_power_w
from wattloop.measure.job import Job
from wattloop.measure.meter_stream import DomainSource, MeterStream, domain_sources
from wattloop.measure.node_leader import LeaderRole
from wattloop.meters.base import Context
from wattloop.meters.registry import Inventory

if TYPE_CHECKING:
    from wattloop.measure.sampler_process import SamplerProcess


# Adaptive interval: shorter while the power changes, longer while it is steady.
#
# A counter loses no energy when it is read rarely: only the curve between its points gets coarser.
# A gauge is never slowed down, since changes between two of its readings are lost.
SLOWEST = 4
"""A steady counter is read up to this many times less often."""
STEADY_READS = 20
STEADY_SHARE = 0.05
"""Power that stays within this share is steady."""
STEADY_W = 1.0


class AdaptiveInterval:
    """The interval of one stream, as a multiple of the configured interval."""

    def __init__(self, feed: MeterStream) -> None:
        self._feed = feed
        self._may_slow = not feed.slow and all(d.kind is DomainKind.COUNTER for d in feed.domains)
        self._powers_w: list[float] = [0.0] * len(feed.domains)
        self._steady_reads = 0
        self.factor = 1

    def after_read(self) -> int:
        """Examine the last reading; return the factor for the next interval."""
        if not self._may_slow:
            return 1
        if self._changed():
            self._steady_reads = 0
            self.factor = 1
        else:
            self._steady_reads += 1
            if self._steady_reads >= STEADY_READS:
                self._steady_reads = 0
                self.factor = min(SLOWEST, 2 * self.factor)
        return self.factor

    def _changed(self) -> bool:
        changed = False
        for i, track in enumerate(self._feed.tracks):
            power_w = track.power_w(0.05) or 0.0
            last_w = self._powers_w[i]
            if abs(power_w - last_w) > max(STEADY_W, STEADY_SHARE * abs(last_w)):
                self._powers_w[i] = power_w
                changed = True
        return changed


FLUSH_S = 0.5
"""Interval of flushes to the journal: the most that a crash can lose."""
TICK_SEARCH_AT_S = (0.0, 0.7, 3.0, 12.0)


class SamplingPlan:
    """Time of a stream's next reading."""

    __slots__ = ("due_s", "feed", "interval_s", "pace", "settles_later")

    def __init__(self, feed: MeterStream, due_s: float) -> None:
        self.feed = feed
        self.due_s = due_s
        self.interval_s = 0.0
        self.pace: AdaptiveInterval | None = None
        # Slow sensors are settled at once: their next reading depends on this one.
        self.settles_later = feed.cheap_at_edges

    def next(self, time_s: float) -> None:
        """Advance by one interval; after a pause continue from now instead of catching up."""
        self.due_s += self.interval_s
        if self.due_s <= time_s:
            self.due_s = time_s + self.interval_s


class PeriodicTasks:
    """Due times of periodic tasks other than reading."""

    __slots__ = (
        *("cpu_at_s", "cpu_s", "due_s", "flush_s", "searches_s"),
        *("followed_s", "signals_s"),
    )

    def __init__(self, start_s: float) -> None:
        self.searches_s = [start_s + after_s for after_s in TICK_SEARCH_AT_S]
        self.signals_s = start_s
        self.followed_s = math.inf
        self.flush_s = start_s + FLUSH_S
        self.due_s = start_s
        self.cpu_s = time.thread_time()
        self.cpu_at_s = start_s


def feed_interval_s(feed: MeterStream, wished_s: float, duty: float) -> float:
    """Return the sampling interval of a stream.

    It is the configured one, but no shorter than the update period or than the cost allows, and
    short enough that no counter wraps unseen.
    """
    if not feed.domains:
        return 3_600.0
    period_s = min(d.update_period_s for d in feed.domains)
    interval_s = max(wished_s, period_s, feed.cost_s / duty)
    for domain in feed.domains:
        if domain.kind is DomainKind.COUNTER and domain.wrap_j is not None:
            interval_s = min(interval_s, max(0.02, domain.wrap_j / plausible_power_w(domain)))
    return interval_s


SIGNALS_S = 1.0
SIGNALS_IN_PROCESS_S = 2.0
"""Signals such as utilisation cost more than all counters; inside a program they are read less
often."""
FOLLOWED_S = 0.2
"""Signals that a listener follows are read this often, and journaled as often as others. NVML's
utilisation has this period."""
FOLLOWED_DUTY = 0.01
"""Share of time that reading signals for a listener may take."""
COST_GROWTH = 1.25
DUTY_IN_PROCESS = 0.004
"""Share of time that a meter may be read inside the user's program."""
DUTY_ALONE = 0.03
"""The same in a separate process."""
CPU_BUDGET = 0.004
"""Share of one core that cheap counters and the journal may take inside the user's program."""
MOST_STRETCH = 8.0
SHORT_S = 0.02
FAULT_PAUSE_S = 0.1
"""Pause after an internal failure, so that the thread does not spin."""
CHORES_SLACK_S = 0.02
"""Tasks run up to this much early, together with a reading, to save wake-ups."""
TICK_SEARCH_EVERY_S = 60.0
TICK_SEARCH_LIMIT_S = 0.3


class _Waker:
    """A wait that another thread can end.

    Polling a descriptor is the cheapest way to wait for a time or a message, by a third; systems
    without `eventfd` wait for a lock.
    """

    def __init__(self) -> None:
        self._event = threading.Event()
        self._fd = -1
        if hasattr(os, "eventfd"):
            self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._poll = select.poll()
            self._poll.register(self._fd, select.POLLIN)

    def wait(self, time_s: float) -> bool:
        """Return True if `wake` was called."""
        return bool(self._poll.poll(time_s * 1_000)) if self._fd >= 0 else self._event.wait(time_s)

    def wake(self) -> None:
        self._event.set()
        if self._fd >= 0:
            os.eventfd_write(self._fd, 1)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Sampler:
    """A thread that reads streams until stopped, which wakes it at once."""

    def __init__(
        self,
        feeds: Sequence[MeterStream],
        signal_feeds: Sequence[MeterStream],
        clock: Clock,
        interval_s: float,
        *,
        in_process: bool,
        adaptive: bool = True,
        tick_feeds: Sequence[MeterStream] = (),
        on_flush: Callable[[], None],
        on_fault: Callable[[Exception], None] | None = None,
    ) -> None:
        self._feeds = list(feeds)
        self._signal_feeds = [feed for feed in signal_feeds if feed.signals]
        self._clock = clock
        self._interval_s = interval_s
        self._duty = DUTY_IN_PROCESS if in_process else DUTY_ALONE
        self._adaptive = adaptive
        self._tick_feeds = [feed for feed in tick_feeds or feeds if any(feed.tick_clocks)]
        self._in_process = in_process
        self._followed_cost_s = FOLLOWED_S * FOLLOWED_DUTY
        self._stretch = 1.0
        self._plans: list[SamplingPlan] = []
        self._on_flush = on_flush
        self._on_fault = on_fault
        self.on_readings: Callable[[float], None] | None = None
        """Called after a round of readings, with its time."""
        self._last: Callable[[], None] | None = None
        self._waker = _Waker()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="wattloop-sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, last: Callable[[], None] | None = None, timeout_s: float = 2.0) -> bool:
        """Stop the thread; it calls `last` before it ends.

        Returns:
            True if it has ended; a meter that hangs is abandoned after `timeout_s`.
        """
        self._last = last
        self._stopped = True
        if self._thread.is_alive():
            self._waker.wake()
            self._thread.join(timeout_s)
            self._last = None
            if self._thread.is_alive():
                return False
        self._do_last()
        self._waker.close()
        return True

    def replace_feeds(
        self,
        feeds: Sequence[MeterStream],
        signal_feeds: Sequence[MeterStream],
        interval_s: float,
        tick_feeds: Sequence[MeterStream],
    ) -> None:
        """Read other streams from the next round on."""
        self._feeds = list(feeds)
        self._signal_feeds = [feed for feed in signal_feeds if feed.signals]
        self._tick_feeds = [feed for feed in tick_feeds if any(feed.tick_clocks)]
        self._interval_s = interval_s
        self._plans = self._new_plans(self._clock.now_s())

    def _run(self) -> None:
        while True:
            try:
                self._read_until_stopped()
                self._do_last()
                return
            except Exception as error:  # noqa: BLE001 - a fault of ours must not end the measuring
                if self._on_fault is not None:
                    self._on_fault(error)
            if self._stopped:
                return
            time.sleep(FAULT_PAUSE_S)

    def _do_last(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            last()

    def _read_until_stopped(self) -> None:
        now_s = self._clock.now_s
        start_s = now_s()
        self._plans = self._new_plans(start_s)
        chores = PeriodicTasks(start_s)
        while True:
            time_s = now_s()
            if time_s >= chores.due_s:
                self._do(chores, time_s)
            wait_s = chores.due_s + CHORES_SLACK_S
            read = False
            for plan in self._plans:
                if time_s >= plan.due_s:
                    read = True
                    if plan.settles_later:
                        plan.feed.sample()
                        plan.next(time_s)
                    else:
                        self._read_now(plan, time_s, chores)
                wait_s = min(wait_s, plan.due_s)
            if read and self.on_readings is not None:
                self.on_readings(time_s)
            delay_s = wait_s - now_s()
            if delay_s > SHORT_S:
                if self._waker.wait(delay_s):
                    return
            else:
                # Cheaper than waiting for the lock, and short enough not to delay a stop.
                time.sleep(max(0.0, delay_s))
                if self._stopped:
                    return

    def _read_now(self, plan: SamplingPlan, time_s: float, chores: PeriodicTasks) -> None:
        """Read a sensor whose next reading depends on its value; it has its own budget."""
        cpu_s = time.thread_time()
        plan.feed.read()
        self._set_interval(plan)
        plan.next(time_s)
        plan.due_s = plan.feed.quiet_time_s(plan.due_s)
        chores.cpu_s += time.thread_time() - cpu_s

    def _do(self, chores: PeriodicTasks, time_s: float) -> None:
        """Do the periodic tasks that are due."""
        if time_s >= chores.searches_s[0]:
            cpu_s = time.thread_time()
            self._search_ticks(chores.searches_s)
            chores.cpu_s += time.thread_time() - cpu_s
        if time_s >= chores.signals_s:
            for feed in self._signal_feeds:
                feed.read_signals()
            every_s = SIGNALS_IN_PROCESS_S if self._in_process else SIGNALS_S
            chores.signals_s = time_s + max(every_s, self._interval_s) - CHORES_SLACK_S
            chores.followed_s = self._next_followed_s(time_s)
        elif time_s >= chores.followed_s:
            for feed in self._signal_feeds:
                if feed.on_signals is not None:
                    feed.read_signals(journaled=False)
            chores.followed_s = self._next_followed_s(time_s)
        if time_s >= chores.flush_s:
            self._on_flush()
            chores.flush_s = time_s + FLUSH_S - CHORES_SLACK_S
            self._keep_budget(chores, time_s)
            for plan in self._plans:
                self._set_interval(plan)
        chores.due_s = min(
            chores.searches_s[0], chores.signals_s, chores.followed_s, chores.flush_s
        )

    def _next_followed_s(self, time_s: float) -> float:
        """Return when signals with a listener are due after a reading that began at `time_s`."""
        if not any(feed.on_signals is not None for feed in self._signal_feeds):
            return math.inf
        # One slow reading may have waited for a processor; slow ones in a row are expensive.
        cost_s = self._clock.now_s() - time_s
        self._followed_cost_s = min(cost_s, COST_GROWTH * self._followed_cost_s)
        return time_s + max(FOLLOWED_S, self._followed_cost_s / FOLLOWED_DUTY) - CHORES_SLACK_S

    def _keep_budget(self, chores: PeriodicTasks, time_s: float) -> None:
        """Read counters less often when reading takes too much of the user's processor.

        No energy is lost: the curve between two windows gets coarser.
        """
        cpu_s = time.thread_time()
        share = (cpu_s - chores.cpu_s) / max(time_s - chores.cpu_at_s, 1e-9)
        chores.cpu_s, chores.cpu_at_s = cpu_s, time_s
        if self._in_process:
            wanted = self._stretch * share / CPU_BUDGET
            # Half way each time: one slow round should not change the interval.
            self._stretch = min(MOST_STRETCH, max(1.0, (self._stretch + wanted) / 2))

    def _new_plans(self, now_s: float) -> list[SamplingPlan]:
        old = {plan.feed: plan for plan in self._plans}
        plans = []
        for feed in self._feeds:
            plan = old.get(feed) or SamplingPlan(feed, now_s)
            if self._adaptive and plan.pace is None:
                plan.pace = AdaptiveInterval(feed)
                feed.after_take = plan.pace.after_read
            self._set_interval(plan)
            plans.append(plan)
        return plans

    def _set_interval(self, plan: SamplingPlan) -> None:
        wished_s = self._interval_s * (plan.pace.factor if plan.pace is not None else 1)
        if plan.settles_later:
            wished_s *= self._stretch
        plan.interval_s = feed_interval_s(plan.feed, wished_s, self._duty)

    def _search_ticks(self, searches: list[float]) -> None:
        for feed in self._tick_feeds:
            feed.find_ticks(TICK_SEARCH_LIMIT_S, self._clock.sleep)
        last_s = searches.pop(0)
        if not searches:
            searches.append(last_s + TICK_SEARCH_EVERY_S)


# Reader of a node's meters for one run: streams, leader role, and sampling thread or process.
#
# The thread of a `Sampler` takes the readings. In a program that measures itself for more than a
# moment, a separate process takes them over (`sampler_process`), and the thread only collects.

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
        """Return what this process's thread reads: streams, those with signals, the interval."""
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
        """Start the sampler process when due, or check it; True if the readers changed."""
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
        """Return True if signals come from the process of the readings, or from any."""
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
