"""The thread that reads meters at their pace and writes the journal."""

import threading
from collections.abc import Callable, Sequence

from wattloop.core.clock import Clock
from wattloop.core.records import DomainKind
from wattloop.measure.feeds import MeterFeed
from wattloop.measure.pace import Pace

__all__ = ["Sampler", "feed_interval_s"]

FLUSH_S = 0.5
"""Buffered readings reach the journal this often: what a crash can lose."""
SIGNALS_S = 1.0
DUTY_IN_PROCESS = 0.004
"""Share of time a meter may be read for inside the user's program."""
DUTY_ALONE = 0.03
"""The same in a process of our own."""
WRAP_GUARD_W = 4_000.0
"""A counter is read often enough not to wrap unseen at this power."""
TICK_SEARCH_AT_S = (0.0, 0.7, 3.0, 12.0)
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
    ) -> None:
        self._feeds = list(feeds)
        self._signal_feeds = [feed for feed in signal_feeds if feed.signals]
        self._clock = clock
        self._interval_s = interval_s
        self._duty = DUTY_IN_PROCESS if in_process else DUTY_ALONE
        self._adaptive = adaptive
        self._tick_feeds = [feed for feed in tick_feeds or feeds if any(feed.tick_clocks)]
        self._paces: dict[MeterFeed, Pace] = {}
        self._on_flush = on_flush
        # A bare lock is the cheapest thing a thread can wait for with a time-out.
        self._stop = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="wattloop-sampler", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._stop.acquire()
        self._thread.start()

    def stop(self, timeout_s: float = 2.0) -> None:
        """End; a meter that hangs is left behind after `timeout_s`."""
        if self._stop.locked():
            self._stop.release()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def replace_feeds(self, feeds: Sequence[MeterFeed], interval_s: float) -> None:
        """Read other feeds from the next round on."""
        self._feeds = list(feeds)
        self._interval_s = interval_s

    def _run(self) -> None:
        now_s = self._clock.now_s
        start_s = now_s()
        due_s: dict[MeterFeed, float] = {}
        signals_s, flush_s = start_s, start_s + FLUSH_S
        searches = [start_s + after_s for after_s in TICK_SEARCH_AT_S]
        while True:
            time_s = now_s()
            if time_s >= searches[0]:
                self._search_ticks(searches)
            if time_s >= signals_s:
                for feed in self._signal_feeds:
                    feed.read_signals()
                signals_s = time_s + max(SIGNALS_S, self._interval_s)
            if time_s >= flush_s:
                self._on_flush()
                flush_s = time_s + FLUSH_S
            wait_s = min(signals_s, flush_s)
            for feed in self._feeds:
                feed_due_s = due_s.get(feed, start_s)
                if time_s >= feed_due_s:
                    feed.read()
                    feed_due_s = due_s[feed] = self._next_due_s(feed, feed_due_s, time_s)
                wait_s = min(wait_s, feed_due_s)
            if self._stop.acquire(timeout=max(0.0, wait_s - now_s())):
                return

    def _next_due_s(self, feed: MeterFeed, due_s: float, time_s: float) -> float:
        wished_s = self._interval_s
        if self._adaptive:
            pace = self._paces.get(feed)
            if pace is None:
                pace = self._paces[feed] = Pace(feed)
            wished_s *= pace.after_read()
        interval_s = feed_interval_s(feed, wished_s, self._duty)
        next_s = due_s + interval_s
        if next_s <= time_s:  # after a pause go on from now instead of catching up
            next_s = time_s + interval_s
        return feed.quiet_time_s(next_s)

    def _search_ticks(self, searches: list[float]) -> None:
        for feed in self._tick_feeds:
            feed.find_ticks(TICK_SEARCH_LIMIT_S, self._clock.sleep)
        last_s = searches.pop(0)
        if not searches:
            searches.append(last_s + TICK_SEARCH_EVERY_S)


def feed_interval_s(feed: MeterFeed, wished_s: float, duty: float) -> float:
    """How often to read a feed: as wished, but no more often than it changes or than its cost
    allows, and often enough that no counter wraps unseen.
    """
    if not feed.domains:
        return 3_600.0
    period_s = min(d.update_period_s for d in feed.domains)
    interval_s = max(wished_s, period_s, feed.cost_s / duty)
    for domain in feed.domains:
        if domain.kind is DomainKind.COUNTER and domain.wrap_j is not None:
            interval_s = min(interval_s, max(0.02, domain.wrap_j / WRAP_GUARD_W))
    return interval_s
