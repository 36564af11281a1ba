"""Who offers which domain: one source each, and a gauge that gives a slow counter its shape."""

from __future__ import annotations

from collections.abc import Sequence

from wattloop.core.records import SLOW_SENSOR_S, Domain, DomainKind
from wattloop.measure.counter_track import CounterTrack
from wattloop.measure.feeds import MeterFeed, SourceTrack
from wattloop.measure.fusion import ShapedCounter
from wattloop.measure.gauge_track import GaugeTrack
from wattloop.measure.spans import Span

__all__ = ["Channel", "channels_of", "selected"]


class Channel:
    """The source chosen for one domain, and the gauge that gives its shape, if there is one."""

    __slots__ = ("domain", "feed", "index", "shape_feed", "shape_index")

    def __init__(
        self,
        domain: Domain,
        feed: MeterFeed,
        index: int,
        shape_feed: MeterFeed | None = None,
        shape_index: int = 0,
    ) -> None:
        self.domain = domain
        self.feed = feed
        self.index = index
        self.shape_feed = shape_feed
        self.shape_index = shape_index

    @property
    def track(self) -> SourceTrack | ShapedCounter:
        """The energy curve of this domain."""
        primary = self.feed.tracks[self.index]
        if self.shape_feed is None:
            return primary
        shape = self.shape_feed.tracks[self.shape_index]
        assert isinstance(primary, CounterTrack)
        assert isinstance(shape, GaugeTrack)
        return ShapedCounter(primary, shape)

    def between(self, begin_s: float, end_s: float) -> Span | None:
        """Energy of the domain between two instants."""
        if self.shape_feed is None or self.shape_feed is self.feed:
            return self.feed.between(self.index, begin_s, end_s)
        with self.feed.lock, self.shape_feed.lock:
            self.feed.settle()
            self.shape_feed.settle()
            return self.track.between(begin_s, end_s)

    def power_w(self) -> float | None:
        """Power now."""
        feed = self.feed if self.shape_feed is None else self.shape_feed
        with feed.lock:
            feed.settle()
            return self.track.power_w()


def channels_of(feeds: Sequence[MeterFeed], devices: Sequence[str] = ()) -> list[Channel]:
    """One channel per domain name: the first feed wins; a later gauge shapes a slow counter."""
    chosen: dict[str, Channel] = {}
    for feed in feeds:
        for index, domain in enumerate(feed.domains):
            if not selected(domain.name, devices):
                continue
            candidate = Channel(domain, feed, index)
            present = chosen.get(domain.name)
            if present is None:
                chosen[domain.name] = candidate
            elif _shapes(candidate, present):
                chosen[domain.name] = _shaped(present, candidate)
            elif _shapes(present, candidate):
                chosen[domain.name] = _shaped(candidate, present)
    return list(chosen.values())


def _shaped(counter: Channel, gauge: Channel) -> Channel:
    # Both sensors of one device keep the same beat; the cheap one is watched for it.
    beat = gauge.feed.tick_clocks[gauge.index]
    counter.feed.tracks[counter.index].ticks = beat
    counter.feed.tick_clocks[counter.index] = beat
    counter.feed.told_ticks = True
    return Channel(counter.domain, counter.feed, counter.index, gauge.feed, gauge.index)


def _shapes(gauge: Channel, counter: Channel) -> bool:
    """Whether a gauge can give the shape between the points of a slow counter."""
    return (
        counter.shape_feed is None
        and gauge.shape_feed is None
        and counter.domain.kind is DomainKind.COUNTER
        and gauge.domain.kind is DomainKind.GAUGE
        and counter.domain.update_period_s >= SLOW_SENSOR_S
        and gauge.domain.provenance is counter.domain.provenance
    )


def selected(name: str, devices: Sequence[str]) -> bool:
    """Whether `devices` choose the domain `name`: all unless one is named, `-NAME` leaves one out.

    `all` is every domain.
    """
    if any(_matches(name, each[1:]) for each in devices if each.startswith("-")):
        return False
    wanted = [each for each in devices if not each.startswith("-")]
    return not wanted or any(each == "all" or _matches(name, each) for each in wanted)


def _matches(name: str, wanted: str) -> bool:
    return name == wanted or name.startswith((f"{wanted}:", f"{wanted}/"))
