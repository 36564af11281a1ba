"""The source of each domain: one meter, or an exact counter fused with a fast gauge."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

from wattloop.core.records import SLOW_SENSOR_S, Domain, DomainKind
from wattloop.measure.energy_curve import BRIDGE_S, CounterCurve, EnergySpan, GaugeCurve
from wattloop.measure.meter_stream import MeterStream, SourceTrack

# Fusion of a slow, exact counter and a fast gauge of the same device.
#
# A GPU's energy counter is exact but takes milliseconds to read, so it is read rarely. Its power
# gauge is cheap. The counter gives the energy at its points, the gauge gives the power between
# them.

UNSEEN_SHARE = 0.15
"""Power may differ by this share from the value that the two gauge readings around it agree on."""

RATIO_SPAN_S = 20.0
"""Length of the past in which counter and gauge are compared when the counter has not been read
yet."""


class FusedCurve:
    """Energy curve that passes through the counter's points and follows the gauge in between."""

    def __init__(self, counter: CounterCurve, gauge: GaugeCurve) -> None:
        self.counter = counter
        self.gauge = gauge

    @property
    def domain(self) -> Domain:
        return self.counter.domain

    @property
    def lost(self) -> tuple[float, str] | None:
        """Time and reason of the loss of the device, if it was lost."""
        return self.counter.lost or self.gauge.lost

    @property
    def last_gap(self) -> tuple[float, str] | None:
        """Last failed reading that has not been followed by a good one."""
        return self.counter.last_gap if self.counter.times_s else self.gauge.last_gap

    @property
    def last_read_s(self) -> float:
        """Time of the last reading of either sensor."""
        return max(self.counter.last_read_s, self.gauge.last_read_s)

    @property
    def period_s(self) -> float:
        """Update period of the faster of the two."""
        return min(self.counter.period_s, self.gauge.period_s)

    def power_w(self, over_s: float = 1.0) -> float | None:
        return self.gauge.power_w(over_s)

    def unseen_wraps(self, begin_s: float, end_s: float) -> tuple[float, int]:
        """Return seconds of bridged gaps of the counter, and the number of wraps they can hide."""
        return self.counter.unseen_wraps(begin_s, end_s)

    def between(self, begin_s: float, end_s: float) -> EnergySpan | None:
        counter = self.counter
        if len(counter.times_s) < 2:  # not yet read, or a card without a counter
            return self.gauge.between(begin_s, end_s) or counter.between(begin_s, end_s)
        if not self.gauge.times_s:
            return counter.between(begin_s, end_s)
        last_s = end_s
        lost = self.lost is not None and self.lost[0] < end_s
        if lost or self._silent(end_s):
            last_s = max(begin_s, min(end_s, self.last_read_s))
        hole_s = end_s - last_s + counter.uncounted_s(begin_s, last_s)
        covered = max(0.0, 1 - hole_s / (end_s - begin_s)) if end_s > begin_s else 0.0
        begin_j, begin_sigma_j = self._at(begin_s)
        end_j, end_sigma_j = self._at(last_s)
        energy_j = end_j - begin_j
        # In a short window both ends have the same error, so only the power is uncertain.
        short_j = self._power_sigma_w(begin_s, last_s) * (last_s - begin_s)
        sigma_j = min(math.hypot(begin_sigma_j, end_sigma_j), short_j)
        sigma_j = math.hypot(sigma_j, counter.bridged_sigma_j(begin_s, last_s))
        return EnergySpan(energy_j, sigma_j, covered, moved=True)

    def _silent(self, end_s: float) -> bool:
        """Return True if both sensors have failed for too long to extrapolate."""
        failing = self.counter.last_gap is not None and self.gauge.last_gap is not None
        return failing and end_s - self.last_read_s > BRIDGE_S

    def _at(self, time_s: float) -> tuple[float, float]:
        times, totals = self.counter.times_s, self.counter.totals_j
        i = bisect_right(times, time_s)
        if i == 0 or i == len(times):
            return self._beyond(time_s, 0 if i == 0 else len(times) - 1)
        left, right = i - 1, i
        anchored_j = totals[right] - totals[left]
        gauge_left_j, sigma_left_j = self.gauge.at(times[left])
        gauge_right_j, sigma_right_j = self.gauge.at(times[right])
        gauge_j, gauge_sigma_j = self.gauge.at(time_s)
        shape_j = gauge_right_j - gauge_left_j
        length_s = times[right] - times[left]
        share = (time_s - times[left]) / length_s
        ratio = anchored_j / shape_j if shape_j > 0 else 1.0
        energy_j = totals[left] + ratio * (gauge_j - gauge_left_j)
        mean_w = anchored_j / length_s
        blur_j = math.hypot(
            (1 - share) * self._blur_j(left, mean_w), share * self._blur_j(right, mean_w)
        )
        scale = self._recent_ratio(right)
        sigma_j = math.hypot(
            blur_j,
            _bridge_sigma(sigma_left_j, gauge_sigma_j, sigma_right_j),
            min(self._hidden_j(time_s, scale), mean_w * length_s * 0.5),
            self._misplaced_j(left, share, scale),
        )
        return energy_j, sigma_j

    def _hidden_j(self, time_s: float, scale: float) -> float:
        """Return the energy of power variations between two readings of the gauge.

        It is judged by the step of the gauge around the instant, and by the distance of its
        readings from the counter's mean (a gauge that samples one phase of a fast alternation).
        """
        gauge = self.gauge
        i = bisect_right(gauge.times_s, time_s)
        near = gauge.watts[max(0, i - 2) : i + 2]
        if not near:
            return 0.0
        step_w = max(near) - min(near)
        alias_w = abs(scale - 1.0) * sum(near) / len(near)
        # A step at an unknown time between two readings displaces at most a quarter of step x
        # spacing.
        return 0.25 * (step_w + alias_w) * max(gauge.period_s, self._spacing_s(i))

    def _power_sigma_w(self, begin_s: float, end_s: float) -> float:
        """Return the standard deviation of a window's mean power around the gauge's readings."""
        gauge = self.gauge
        first = bisect_right(gauge.times_s, begin_s)
        last = bisect_right(gauge.times_s, end_s)
        near = gauge.watts[max(0, first - 2) : last + 2]
        if not near:
            return math.inf
        alias_w = abs(self._recent_ratio(len(self.counter.times_s) - 1) - 1.0) * max(near)
        return max(near) - min(near) + alias_w + UNSEEN_SHARE * max(near)

    def _misplaced_j(self, left: int, share: float, scale: float) -> float:
        """Return the joules that only the counter saw; they may lie on either side of the
        instant.
        """
        times, totals = self.counter.times_s, self.counter.totals_j
        worst_j = 0.0
        for i in range(max(0, left - 1), min(len(times) - 1, left + 2)):
            shape_j = self.gauge.at(times[i + 1])[0] - self.gauge.at(times[i])[0]
            worst_j = max(worst_j, abs(totals[i + 1] - totals[i] - scale * shape_j))
        return worst_j * math.sqrt(share * (1 - share))

    def _spacing_s(self, i: int) -> float:
        times = self.gauge.times_s
        if 0 < i < len(times):
            return times[i] - times[i - 1]
        return self.gauge.period_s

    def _beyond(self, time_s: float, i: int) -> tuple[float, float]:
        """Extrapolate before the first or after the last point of the counter with the scaled
        gauge.
        """
        counter = self.counter
        ratio = self._recent_ratio(len(counter.times_s) - 1)
        gauge_j = self.gauge.at(time_s)[0] - self.gauge.at(counter.times_s[i])[0]
        power_w = self.gauge.power_w() or 0.0
        sigma_j = math.hypot(
            self._blur_j(i, power_w),
            0.05 * abs(gauge_j) + self._hidden_j(time_s, ratio),
        )
        return counter.totals_j[i] + ratio * gauge_j, sigma_j

    def _recent_ratio(self, last: int) -> float:
        """Return the ratio of counter to gauge in the time before point `last`."""
        times, totals = self.counter.times_s, self.counter.totals_j
        first = max(0, bisect_right(times, times[last] - RATIO_SPAN_S) - 1)
        if first == last:
            return 1.0
        shape_j = self.gauge.at(times[last])[0] - self.gauge.at(times[first])[0]
        return (totals[last] - totals[first]) / shape_j if shape_j > 0 else 1.0

    def _blur_j(self, i: int, power_w: float) -> float:
        return self.counter.point_blur_s(i) * abs(power_w) / math.sqrt(3)


def _bridge_sigma(left_j: float, here_j: float, right_j: float) -> float:
    """Sigma of the gauge's integral at a point between two that the counter fixes.

    Errors of the gauge add up as a random walk. Fixed at both ends (Brownian bridge), its variance
    is a b / (a + b), with a and b those gathered since the left and until the right end.
    """
    since = max(0.0, here_j**2 - left_j**2)
    until = max(0.0, right_j**2 - here_j**2)
    return math.sqrt(since * until / (since + until)) if since + until > 0 else 0.0


class DomainSource:
    """The source chosen for one domain, with the gauge that gives its shape between the counter's
    points.
    """

    __slots__ = ("domain", "feed", "index", "shape_feed", "shape_index")

    def __init__(
        self,
        domain: Domain,
        feed: MeterStream,
        index: int,
        shape_feed: MeterStream | None = None,
        shape_index: int = 0,
    ) -> None:
        self.domain = domain
        self.feed = feed
        self.index = index
        self.shape_feed = shape_feed
        self.shape_index = shape_index

    @property
    def track(self) -> SourceTrack | FusedCurve:
        """The energy curve of this domain."""
        primary = self.feed.tracks[self.index]
        if self.shape_feed is None:
            return primary
        shape = self.shape_feed.tracks[self.shape_index]
        assert isinstance(primary, CounterCurve)
        assert isinstance(shape, GaugeCurve)
        return FusedCurve(primary, shape)

    def between(self, begin_s: float, end_s: float) -> EnergySpan | None:
        """Energy of the domain between two instants."""
        if self.shape_feed is None or self.shape_feed is self.feed:
            return self.feed.between(self.index, begin_s, end_s)
        with self.feed.lock, self.shape_feed.lock:
            self.feed.settle()
            self.shape_feed.settle()
            return self.track.between(begin_s, end_s)

    def power_w(self) -> float | None:
        feed = self.feed if self.shape_feed is None else self.shape_feed
        with feed.lock:
            feed.settle()
            return self.track.power_w()


def domain_sources(feeds: Sequence[MeterStream], devices: Sequence[str] = ()) -> list[DomainSource]:
    """Choose one source per domain name: the first stream wins, and a later gauge shapes a slow
    counter.
    """
    chosen: dict[str, DomainSource] = {}
    for feed in feeds:
        for index, domain in enumerate(feed.domains):
            if not selected(domain.name, devices):
                continue
            candidate = DomainSource(domain, feed, index)
            present = chosen.get(domain.name)
            if present is None:
                chosen[domain.name] = candidate
            elif _shapes(candidate, present):
                chosen[domain.name] = _shaped(present, candidate)
            elif _shapes(present, candidate):
                chosen[domain.name] = _shaped(candidate, present)
    return list(chosen.values())


def _shaped(counter: DomainSource, gauge: DomainSource) -> DomainSource:
    # Both sensors of a device update together; the cheap one is polled for the update times.
    beat = gauge.feed.tick_clocks[gauge.index]
    counter.feed.tracks[counter.index].ticks = beat
    counter.feed.tick_clocks[counter.index] = beat
    counter.feed.told_ticks = True
    return DomainSource(counter.domain, counter.feed, counter.index, gauge.feed, gauge.index)


def _shapes(gauge: DomainSource, counter: DomainSource) -> bool:
    """Return True if a gauge can give the shape between the points of a slow counter."""
    return (
        counter.shape_feed is None
        and gauge.shape_feed is None
        and counter.domain.kind is DomainKind.COUNTER
        and gauge.domain.kind is DomainKind.GAUGE
        and counter.domain.update_period_s >= SLOW_SENSOR_S
        and gauge.domain.provenance is counter.domain.provenance
    )


def selected(name: str, devices: Sequence[str]) -> bool:
    """Return True if `devices` select the domain `name`: all unless one is named; `-NAME` excludes
    one.

    `all` is every domain.
    """
    if any(_matches(name, each[1:]) for each in devices if each.startswith("-")):
        return False
    wanted = [each for each in devices if not each.startswith("-")]
    return not wanted or any(each == "all" or _matches(name, each) for each in wanted)


def _matches(name: str, wanted: str) -> bool:
    return name == wanted or name.startswith((f"{wanted}:", f"{wanted}/"))
