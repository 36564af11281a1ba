"""A slow, exact counter and a quick gauge of the same device, joined.

A GPU's energy counter is right but costs milliseconds to read, so it is read seldom; its power
gauge is cheap. The counter fixes the total, the gauge gives the shape between its points.
"""

import math
from bisect import bisect_right

from wattloop.core.records import Domain
from wattloop.measure.tracks import CounterTrack, GaugeTrack, Span

__all__ = ["ShapedCounter"]

RATIO_NEIGHBOURS = 5
"""Segments on each side over which the calibration of counter and gauge is compared."""
RATIO_SPAN_S = 20.0
"""How far back counter and gauge are compared when the counter has not been read yet."""


class ShapedCounter:
    """Energy curve that passes through the counter's points and follows the gauge in between."""

    def __init__(self, counter: CounterTrack, gauge: GaugeTrack) -> None:
        self.counter = counter
        self.gauge = gauge

    @property
    def domain(self) -> Domain:
        """The counter's domain."""
        return self.counter.domain

    @property
    def lost(self) -> tuple[float, str] | None:
        """When and why the device was lost, if it was."""
        return self.counter.lost or self.gauge.lost

    @property
    def last_gap(self) -> tuple[float, str] | None:
        """The last failed reading that no good one has followed."""
        return self.counter.last_gap

    @property
    def last_read_s(self) -> float:
        """When either was last read."""
        return max(self.counter.last_read_s, self.gauge.last_read_s)

    @property
    def period_s(self) -> float:
        """Update period of the quicker of the two."""
        return min(self.counter.period_s, self.gauge.period_s)

    def power_w(self, over_s: float = 1.0) -> float | None:
        """The gauge's last reading."""
        return self.gauge.power_w(over_s)

    def between(self, begin_s: float, end_s: float) -> Span | None:
        """Energy between two instants."""
        counter = self.counter
        if len(counter.times_s) < 2 or not self.gauge.times_s:
            return counter.between(begin_s, end_s) if counter.times_s else None
        last_s, covered = end_s, 1.0
        if self.lost is not None and self.lost[0] < end_s:
            last_s = max(begin_s, min(end_s, self.last_read_s))
            covered = (last_s - begin_s) / (end_s - begin_s) if end_s > begin_s else 0.0
        begin_j, begin_sigma_j = self._at(begin_s)
        end_j, end_sigma_j = self._at(last_s)
        energy_j = end_j - begin_j
        # Inside one segment the two ends share their anchor: only the shape is uncertain.
        sigma_j = min(math.hypot(begin_sigma_j, end_sigma_j), max(abs(energy_j), begin_sigma_j))
        return Span(energy_j, sigma_j, covered, moved=True)

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
        drift_j = _bridge_sigma(sigma_left_j, gauge_sigma_j, sigma_right_j)
        excess_j = abs(anchored_j - self._ratio_around(left, right) * shape_j)
        # What the gauge missed in this segment happened at an unknown moment of it.
        missed_j = excess_j * math.sqrt(share * (1 - share))
        hidden_j = self._hidden_j(time_s, ratio, share, length_s)
        return energy_j, math.sqrt(blur_j**2 + drift_j**2 + missed_j**2 + hidden_j**2)

    def _ratio_around(self, left: int, right: int) -> float:
        """Counter over gauge in the neighbourhood: how the two are calibrated."""
        times, totals = self.counter.times_s, self.counter.totals_j
        first = max(0, left - RATIO_NEIGHBOURS)
        last = min(len(times) - 1, right + RATIO_NEIGHBOURS)
        shape_j = self.gauge.at(times[last])[0] - self.gauge.at(times[first])[0]
        return (totals[last] - totals[first]) / shape_j if shape_j > 0 else 1.0

    def _hidden_j(self, time_s: float, ratio: float, share: float, length_s: float) -> float:
        """What neither sees: power that varies between two looks of the gauge.

        Judged by the step of the gauge around the instant, and by how far counter and gauge
        disagree over the segment.
        """
        gauge = self.gauge
        i = bisect_right(gauge.times_s, time_s)
        near = gauge.watts[max(0, i - 2) : i + 2]
        if not near:
            return 0.0
        step_w = max(near) - min(near)
        disagree_w = abs(ratio - 1.0) * (sum(near) / len(near))
        spacing_s = min(max(gauge.period_s, self._spacing_s(i)), length_s)
        # A step somewhere between two looks displaces at most a quarter of step x spacing.
        drift_j = disagree_w * length_s * share * (1 - share) * 0.5
        return math.hypot(0.25 * (step_w + disagree_w) * spacing_s, drift_j)

    def _spacing_s(self, i: int) -> float:
        times = self.gauge.times_s
        if 0 < i < len(times):
            return times[i] - times[i - 1]
        return self.gauge.period_s

    def _beyond(self, time_s: float, i: int) -> tuple[float, float]:
        """Before the first or after the last point of the counter: the gauge alone, scaled."""
        counter = self.counter
        ratio = self._recent_ratio()
        gauge_j = self.gauge.at(time_s)[0] - self.gauge.at(counter.times_s[i])[0]
        power_w = self.gauge.power_w() or 0.0
        sigma_j = math.hypot(
            self._blur_j(i, power_w),
            0.05 * abs(gauge_j) + self._hidden_j(time_s, ratio, 0.0, 1.0),
        )
        return counter.totals_j[i] + ratio * gauge_j, sigma_j

    def _recent_ratio(self) -> float:
        times, totals = self.counter.times_s, self.counter.totals_j
        last = len(times) - 1
        first = max(0, bisect_right(times, times[last] - RATIO_SPAN_S) - 1)
        if first == last:
            return 1.0
        shape_j = self.gauge.at(times[last])[0] - self.gauge.at(times[first])[0]
        return (totals[last] - totals[first]) / shape_j if shape_j > 0 else 1.0

    def _blur_j(self, i: int, power_w: float) -> float:
        return self.counter.point_blur_s(i) * abs(power_w) / math.sqrt(3)


def _bridge_sigma(left_j: float, here_j: float, right_j: float) -> float:
    """Sigma of the gauge's integral at a point between two that the counter fixes.

    Errors of the gauge add up as at a random walk; tied down at both ends, their variance is
    a b / (a + b), with a and b those gathered since the left and until the right end.
    """
    since = max(0.0, here_j**2 - left_j**2)
    until = max(0.0, right_j**2 - here_j**2)
    return math.sqrt(since * until / (since + until)) if since + until > 0 else 0.0
