"""Readings of a gauge turned into energy between any two instants."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right

from wattloop.core.records import Domain, Gap
from wattloop.measure.spans import (
    BRIDGE_S,
    FEW_POINTS,
    HIDDEN_SHARE,
    KEEP_S,
    THIN_AT_ONCE,
    Span,
    kept_points,
)
from wattloop.measure.ticks import TickClock

__all__ = ["GaugeTrack"]

UNSEEN_PERIODS = 4
"""Readings further apart than this many updates may hide something between them."""


class GaugeTrack:
    """The energy curve of a gauge: its integral by the trapezoidal rule."""

    def __init__(self, domain: Domain, ticks: TickClock | None = None) -> None:
        self.domain = domain
        self.ticks = ticks
        self.period_s = domain.update_period_s
        self.lost: tuple[float, str] | None = None
        self.last_gap: tuple[float, str] | None = None
        self.times_s: array[float] = array("d")
        self.watts: array[float] = array("d")
        self._cumulative_j: array[float] = array("d")
        self._cumulative_var: array[float] = array("d")
        self._uncovered_s: array[float] = array("d")
        self._unseen_s2: array[float] = array("d")
        self._thin = 0
        self._gap_since: float | None = None
        self._read_s = math.nan

    def feed(self, time_s: float, power_w: float, doubt_s: float = 0.0) -> None:
        """Take a reading in watts. It ends whatever gap there was.

        It was taken at `time_s`, give or take `doubt_s`.
        """
        after_gap = self._gap_since is not None
        self.lost = self.last_gap = self._gap_since = None
        self._read_s = time_s
        age_s, blur_s = None, 0.0
        if self.ticks is not None:
            age_s, blur_s = self.ticks.age(time_s)
        if age_s is None:
            age_s = blur_s = self.period_s / 2
        blur_s += doubt_s
        point_s = time_s - age_s - self.domain.averaging_s / 2
        if not self.times_s:
            self._append(point_s, power_w, 0.0, 0.0, 0.0)
            return
        length_s = point_s - self.times_s[-1]
        if length_s <= 1e-4:  # the same update, read again
            return
        step_w = power_w - self.watts[-1]
        if length_s > BRIDGE_S and after_gap:
            self._append(point_s, power_w, 0.0, 0.0, length_s)
        else:
            energy_j = (power_w + self.watts[-1]) / 2 * length_s
            # The step lies anywhere in the segment, and both its ends anywhere in their blur.
            variance = step_w**2 * (length_s**2 / 12 + blur_s**2 / 6)
            self._append(point_s, power_w, energy_j, variance, 0.0)

    def gap(self, time_s: float, gap: Gap) -> None:
        """Take note that a reading failed."""
        self.last_gap = (time_s, gap.reason)
        if self._gap_since is None:
            self._gap_since = time_s
        if gap.lost and self.lost is None:
            self.lost = (time_s, gap.reason)

    @property
    def last_read_s(self) -> float:
        """When the sensor was last read successfully; NaN before the first reading."""
        return self._read_s

    def power_w(self, over_s: float = 1.0) -> float | None:
        """Power at the last reading (`over_s` is for symmetry with counters)."""
        return self.watts[-1] if self.watts else None

    def at(self, time_s: float) -> tuple[float, float]:
        """Energy since the first reading up to `time_s`, and its standard deviation."""
        energy_j, variance, _ = self._cumulated(time_s)
        return energy_j, math.sqrt(variance)

    def between(self, begin_s: float, end_s: float) -> Span | None:
        """Energy between two instants; None when there is no reading to speak of."""
        if not self.times_s:
            return None
        last_s = end_s
        lost = self.lost is not None and self.lost[0] < end_s
        silent = self._gap_since is not None and end_s - self.times_s[-1] > BRIDGE_S
        if lost or silent:
            last_s = max(begin_s, self.times_s[-1] + self.period_s)
        last_s = min(last_s, end_s)
        begin_j, begin_var, begin_hole_s = self._cumulated(begin_s)
        end_j, end_var, end_hole_s = self._cumulated(last_s)
        duration_s = end_s - begin_s
        hole_s = end_hole_s - begin_hole_s + (end_s - last_s)
        covered = max(0.0, 1 - hole_s / duration_s) if duration_s > 0 else 0.0
        length_s = last_s - begin_s
        mean_w = (end_j - begin_j) / length_s if length_s > 0 else 0.0
        edge_s = self.period_s / 2 + self.domain.averaging_s / 4
        edge_w = max(self._variation_w(begin_s), self._variation_w(last_s), 0.02 * abs(mean_w))
        variance = max(0.0, end_var - begin_var) + 2 * (edge_s * edge_w) ** 2 / 3
        variance += (self.domain.resolution * length_s) ** 2 / 12
        variance += self._unseen_variance(begin_s, last_s, mean_w)
        # In a short window both ends are off in the same way: what is uncertain is the power.
        variance = min(variance, (self._peak_w(begin_s, last_s) * length_s) ** 2)
        return Span(end_j - begin_j, math.sqrt(variance), covered)

    def thin_before(self, time_s: float) -> None:
        """Thin out points that are old at `time_s`; energy between those that stay is the same."""
        cut = bisect_right(self.times_s, time_s - KEEP_S) - 1
        if cut - self._thin > THIN_AT_ONCE:
            kept = kept_points(self.times_s, self._thin, cut)
            for column in (
                self.times_s,
                self.watts,
                self._cumulative_j,
                self._cumulative_var,
                self._uncovered_s,
                self._unseen_s2,
            ):
                column[self._thin : cut] = array("d", (column[i] for i in kept))
            self._thin += len(kept)

    def _append(
        self, point_s: float, power_w: float, energy_j: float, variance: float, hole_s: float
    ) -> None:
        last_j = self._cumulative_j[-1] if self._cumulative_j else 0.0
        last_var = self._cumulative_var[-1] if self._cumulative_var else 0.0
        last_hole_s = self._uncovered_s[-1] if self._uncovered_s else 0.0
        last_s2 = self._unseen_s2[-1] if self._unseen_s2 else 0.0
        length_s = point_s - self.times_s[-1] if self.times_s else 0.0
        self.times_s.append(point_s)
        self.watts.append(power_w)
        self._cumulative_j.append(last_j + energy_j)
        self._cumulative_var.append(last_var + variance)
        self._uncovered_s.append(last_hole_s + hole_s)
        self._unseen_s2.append(last_s2 + self._unseen(length_s))

    def _cumulated(self, time_s: float) -> tuple[float, float, float]:
        """Energy, variance and uncovered seconds up to `time_s`."""
        times = self.times_s
        count = len(times)
        if count == 0:
            return 0.0, 0.0, 0.0
        i = bisect_right(times, time_s)
        if i == 0:
            return self.watts[0] * (time_s - times[0]), 0.0, 0.0
        left = i - 1
        distance_s = time_s - times[left]
        energy_j = self._cumulative_j[left]
        if i == count:
            return (
                energy_j + self.watts[left] * distance_s,
                self._cumulative_var[left],
                self._uncovered_s[left],
            )
        length_s = times[i] - times[left]
        share = distance_s / length_s
        hole_s = self._uncovered_s[i] - self._uncovered_s[left]
        energy_j += share * (self._cumulative_j[i] - self._cumulative_j[left])
        if hole_s == 0:  # power on a straight line: its integral is a parabola
            slope = (self.watts[i] - self.watts[left]) / length_s
            energy_j -= slope * distance_s * (length_s - distance_s) / 2
        variance = self._cumulative_var[left] + share * (
            self._cumulative_var[i] - self._cumulative_var[left]
        )
        return energy_j, variance, self._uncovered_s[left] + share * hole_s

    def _unseen_variance(self, begin_s: float, end_s: float, mean_w: float) -> float:
        """What may have happened between readings that lie much further apart than updates."""
        times = self.times_s
        first, last = bisect_right(times, begin_s), bisect_right(times, end_s)
        if first == last:
            unseen_s2 = self._unseen(end_s - begin_s)
        else:
            unseen_s2 = self._unseen(times[first] - begin_s) + self._unseen(end_s - times[last - 1])
            unseen_s2 += self._unseen_s2[last - 1] - self._unseen_s2[first]
        return (HIDDEN_SHARE * mean_w) ** 2 * unseen_s2

    def _unseen(self, length_s: float) -> float:
        """Square of the time between two readings if something may have happened in it, else 0."""
        seen_s = UNSEEN_PERIODS * self.period_s + self.domain.averaging_s
        return length_s**2 if length_s > seen_s else 0.0

    def _peak_w(self, begin_s: float, end_s: float) -> float:
        """The highest power seen in and beside a window of few points; infinite for longer ones."""
        first, last = bisect_right(self.times_s, begin_s), bisect_right(self.times_s, end_s)
        if last - first > FEW_POINTS:
            return math.inf
        return max(map(abs, self.watts[max(0, first - 2) : last + 2]))

    def _variation_w(self, time_s: float) -> float:
        """Step of the power around an instant."""
        i = bisect_right(self.times_s, time_s)
        near = self.watts[max(0, i - 2) : i + 2]
        return max(near) - min(near) if near else 0.0
