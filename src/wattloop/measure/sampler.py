"""The thread that reads meters at their pace and writes the journal."""

import os
import select
import threading
import time
from collections.abc import Callable, Sequence

from wattloop.core.clock import Clock
from wattloop.measure.feeds import MeterFeed
from wattloop.measure.pace import Pace
from wattloop.measure.sampling_plan import FLUSH_S, Chores, Plan, feed_interval_s

__all__ = ["Sampler"]

SIGNALS_S = 1.0
SIGNALS_IN_PROCESS_S = 2.0
"""Utilisation and the like cost more than all counters; inside a program they are read less."""
DUTY_IN_PROCESS = 0.004
"""Share of time a meter may be read for inside the user's program."""
DUTY_ALONE = 0.03
"""The same in a process of our own."""
CPU_BUDGET = 0.004
"""Share of one core that reading cheap counters, and the journal, may take of the user's."""
MOST_STRETCH = 8.0
SHORT_S = 0.02
FAULT_PAUSE_S = 0.1
"""After a fault of our own the thread goes on, but does not spin."""
CHORES_SLACK_S = 0.02
"""Chores are done up to this much early, together with a reading, to save waking up for them."""
TICK_SEARCH_EVERY_S = 60.0
TICK_SEARCH_LIMIT_S = 0.3


class Sampler:
    """Reads feeds until stopped. Stopping wakes it at once, whatever the interval."""

    def __init__(
        self,
        feeds: Sequence[MeterFeed],
        signal_feeds: Sequence[MeterFeed],
        clock: Clock,
        interval_s: float,
        *,
        in_process: bool,
        adaptive: bool = True,
        tick_feeds: Sequence[MeterFeed] = (),
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
        self._plans: list[Plan] = []
        self._on_flush = on_flush
        self._on_fault = on_fault
        self.on_readings: Callable[[float], None] | None = None
        """Called after a round of readings, with its time."""
        self._last: Callable[[], None] | None = None
        # Polling a descriptor is the cheapest way to wait for a time or a word, by a third.
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="wattloop-sampler", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self, last: Callable[[], None] | None = None, timeout_s: float = 2.0) -> bool:
        """End; `last` is what the thread does before it does.

        Returns:
            Whether it has ended: a meter that hangs is left behind after `timeout_s`.
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
        feeds: Sequence[MeterFeed],
        signal_feeds: Sequence[MeterFeed],
        interval_s: float,
        tick_feeds: Sequence[MeterFeed],
    ) -> None:
        """Read other feeds from the next round on."""
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
        chores = Chores(start_s)
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
                # Cheaper than waiting for the lock, and over soon enough to be stopped.
                time.sleep(max(0.0, delay_s))
                if self._stopped:
                    return

    def _read_now(self, plan: Plan, time_s: float, chores: Chores) -> None:
        """Read a sensor whose next time depends on what it says; it has a budget of its own."""
        cpu_s = time.thread_time()
        plan.feed.read()
        self._set_interval(plan)
        plan.next(time_s)
        plan.due_s = plan.feed.quiet_time_s(plan.due_s)
        chores.cpu_s += time.thread_time() - cpu_s

    def _do(self, chores: Chores, time_s: float) -> None:
        """What is done once in a while."""
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

    def _keep_budget(self, chores: Chores, time_s: float) -> None:
        """Read counters less often when that takes too much of the user's processor.

        Nothing of their energy is lost by it: the curve between two windows gets coarser.
        """
        cpu_s = time.thread_time()
        share = (cpu_s - chores.cpu_s) / max(time_s - chores.cpu_at_s, 1e-9)
        chores.cpu_s, chores.cpu_at_s = cpu_s, time_s
        if self._in_process:
            wanted = self._stretch * share / CPU_BUDGET
            # Half way each time: one slow round is no reason to change the pace.
            self._stretch = min(MOST_STRETCH, max(1.0, (self._stretch + wanted) / 2))

    def _new_plans(self, now_s: float) -> list[Plan]:
        old = {plan.feed: plan for plan in self._plans}
        plans = []
        for feed in self._feeds:
            plan = old.get(feed) or Plan(feed, now_s)
            if self._adaptive and plan.pace is None:
                plan.pace = Pace(feed)
                feed.after_take = plan.pace.after_read
            self._set_interval(plan)
            plans.append(plan)
        return plans

    def _set_interval(self, plan: Plan) -> None:
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
