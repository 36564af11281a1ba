"""How often a feed is read: more often while its power changes, less often while it does not.

A counter loses nothing by being read seldom: only the curve between its points gets coarser, and
where power is steady there is nothing to see. A gauge is never slowed down, since what happens
between two of its readings is lost.
"""

from wattloop.core.records import DomainKind
from wattloop.measure.feeds import MeterFeed

__all__ = ["Pace"]

SLOWEST = 4
"""A steady counter is read down to this many times less often."""
STEADY_READS = 20
STEADY_SHARE = 0.05
"""Power that stays within this share is steady."""
STEADY_W = 1.0


class Pace:
    """The interval of one feed, as a multiple of the one wished for."""

    def __init__(self, feed: MeterFeed) -> None:
        self._feed = feed
        self._may_slow = not feed.slow and all(d.kind is DomainKind.COUNTER for d in feed.domains)
        self._powers_w: list[float] = [0.0] * len(feed.domains)
        self._steady_reads = 0
        self.factor = 1

    def after_read(self) -> int:
        """Look at the last reading; returns the factor for the next interval."""
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
