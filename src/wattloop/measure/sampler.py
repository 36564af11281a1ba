"""The thread that reads meters at an adaptive interval and writes the journal."""

import os
import select
import threading
import time
from collections.abc import Callable, Sequence

from wattloop.core.clock import Clock
from wattloop.core.records import DomainKind
from wattloop.measure.energy_curve import plausible_power_w
from wattloop.measure.meter_stream import MeterStream

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

    __slots__ = ("cpu_at_s", "cpu_s", "due_s", "flush_s", "searches_s", "signals_s")

    def __init__(self, start_s: float) -> None:
        self.searches_s = [start_s + after_s for after_s in TICK_SEARCH_AT_S]
        self.signals_s = start_s
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


class Sampler:
    """A thread that reads streams until stopped. Stopping wakes it at once, whatever the
    interval.
    """

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
        self._stretch = 1.0
        self._plans: list[SamplingPlan] = []
        self._on_flush = on_flush
        self._on_fault = on_fault
        self.on_readings: Callable[[float], None] | None = None
        """Called after a round of readings, with its time."""
        self._last: Callable[[], None] | None = None
        # Polling a descriptor is the cheapest way to wait for a time or a message, by a third.
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
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
            os.eventfd_write(self._wake_fd, 1)
            self._thread.join(timeout_s)
            self._last = None
            if self._thread.is_alive():
                return False
        self._do_last()
        if self._wake_fd >= 0:
            os.close(self._wake_fd)
            self._wake_fd = -1
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
        waiting = select.poll()
        waiting.register(self._wake_fd, select.POLLIN)
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
                if waiting.poll(delay_s * 1_000):
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
        if time_s >= chores.flush_s:
            self._on_flush()
            chores.flush_s = time_s + FLUSH_S - CHORES_SLACK_S
            self._keep_budget(chores, time_s)
            for plan in self._plans:
                self._set_interval(plan)
        chores.due_s = min(chores.searches_s[0], chores.signals_s, chores.flush_s)

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
