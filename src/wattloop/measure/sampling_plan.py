"""When meters are read, and when the things beside reading are due."""

import time

from wattloop.core.records import DomainKind
from wattloop.measure.feeds import MeterFeed
from wattloop.measure.pace import Pace
from wattloop.measure.spans import plausible_power_w

__all__ = ["FLUSH_S", "Chores", "Plan", "feed_interval_s"]

FLUSH_S = 0.5
"""Buffered readings reach the journal this often: what a crash can lose."""
TICK_SEARCH_AT_S = (0.0, 0.7, 3.0, 12.0)


class Plan:
    """When a feed is read next."""

    __slots__ = ("due_s", "feed", "interval_s", "pace", "settles_later")

    def __init__(self, feed: MeterFeed, due_s: float) -> None:
        self.feed = feed
        self.due_s = due_s
        self.interval_s = 0.0
        self.pace: Pace | None = None
        # Slow sensors are settled at once: when to read them next depends on what they said.
        self.settles_later = feed.cheap_at_edges

    def next(self, time_s: float) -> None:
        """One interval on; after a pause go on from now instead of catching up."""
        self.due_s += self.interval_s
        if self.due_s <= time_s:
            self.due_s = time_s + self.interval_s


class Chores:
    """When the things beside reading are due."""

    __slots__ = ("cpu_at_s", "cpu_s", "due_s", "flush_s", "searches_s", "signals_s")

    def __init__(self, start_s: float) -> None:
        self.searches_s = [start_s + after_s for after_s in TICK_SEARCH_AT_S]
        self.signals_s = start_s
        self.flush_s = start_s + FLUSH_S
        self.due_s = start_s
        self.cpu_s = time.thread_time()
        self.cpu_at_s = start_s


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
            interval_s = min(interval_s, max(0.02, domain.wrap_j / plausible_power_w(domain)))
    return interval_s
