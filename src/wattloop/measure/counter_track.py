"""Readings of a counter turned into energy between any two instants.

A counter's reading is as old as its sensor's last update, so a point of the energy curve lies at
`t - age`, where the age is bounded by the update period, by the time since the last unchanged
reading, or known from the sensor's tick (`ticks.TickClock`). Between points the curve is
interpolated. All standard deviations are of what the sensor would have shown with an infinitely
fine clock; a systematic error of the sensor itself is stated with the domain.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections import deque
from typing import NamedTuple

from wattloop.core.plausible import counter_rise_j
from wattloop.core.records import Domain, Gap
from wattloop.measure.spans import (
    BRIDGE_S,
    FEW_POINTS,
    HIDDEN_SHARE,
    KEEP_S,
    THIN_AT_ONCE,
    Span,
    kept_points,
    plausible_power_w,
)
from wattloop.measure.ticks import TickClock

__all__ = ["MODEL_S", "CounterTrack"]

LEARNED_PERIOD_LIMIT_S = 0.25
UNREAD_LIMIT_S = 60.0
"""A counter that has not been read for longer is no longer carried on at its last power."""
SHORTEST_SEGMENT_S = 1e-5
EXACT_S = 1e-6
"""Of a counter that is always up to date (a share that is computed) an unchanged value says that
nothing was used; of a sensor only that it has not been updated."""
RESETS_KEPT = 1_000
"""A broken counter may fall at every reading; the last falls are enough to say so."""
BRIDGES_KEPT = 100
"""Beyond this many the two oldest bridges become one."""
MODEL_S = 10.0
"""Length of the time before a gap whose mean power is the model of the gap."""
MODEL_ERROR = 0.5
"""Standard deviation of that model, as a share: a suspended job idles, another one begins."""
SURE = 0.999
"""Probability from which on a number of wraps is taken as known."""


class Bridge(NamedTuple):
    """A time without readings in which the counter may have wrapped unseen.

    `sigma_j` is one standard deviation of its energy, `unread_s` how long no reading was taken,
    `wraps` how often the counter can have wrapped unseen at a plausible power.
    """

    since_s: float
    until_s: float
    sigma_j: float
    unread_s: float
    wraps: int


class CounterTrack:
    """The energy curve of a counter: unwrapped joules since the first reading."""

    def __init__(self, domain: Domain, ticks: TickClock | None = None) -> None:
        self.domain = domain
        self.ticks = ticks
        self.period_s = domain.update_period_s
        self._exact = domain.update_period_s <= EXACT_S
        self.lost: tuple[float, str] | None = None
        self.last_gap: tuple[float, str] | None = None
        self.wraps = 0
        self.resets: deque[tuple[float, float]] = deque(maxlen=RESETS_KEPT)
        """Last reading before the counter began anew, and the first after it."""
        self.bridges: list[Bridge] = []
        self.model_w: float | None = None
        """Mean power before the first reading, where another process knew it."""
        self.times_s: array[float] = array("d")
        self.totals_j: array[float] = array("d")
        self._blurs_s: array[float] = array("d")
        self._raw_j = math.nan
        self._total_j = 0.0
        self._read_s = math.nan
        self._doubt_s = 0.0
        self._changed_s = math.nan
        self._holds_s: list[float] = []
        self._thin = 0

    def feed(self, time_s: float, raw_j: float, doubt_s: float = 0.0) -> None:
        """Take a reading: joules as the sensor shows them. It ends whatever gap there was.

        It was taken at `time_s`, give or take `doubt_s`.
        """
        since_s = time_s - self._read_s + self._doubt_s + doubt_s
        self._doubt_s = doubt_s
        self.last_gap = None
        self.lost = None
        if raw_j == self._raw_j and not self._may_have_wrapped(time_s):
            if self._exact:
                self._push(time_s, since_s, doubt_s)
                self._changed_s = time_s
            self._read_s = time_s
            return
        if math.isnan(self._raw_j):
            since_s = math.inf
        else:
            self._learn_period()
            self._total_j += self._difference(time_s, raw_j)
        self._push(time_s, since_s, doubt_s)
        self._raw_j = raw_j
        self._read_s = self._changed_s = time_s

    def gap(self, time_s: float, gap: Gap) -> None:
        """Take note that a reading failed. A counter goes on counting, so nothing is lost yet:
        the next good reading holds the joules of the gap.
        """
        self.last_gap = (time_s, gap.reason)
        if gap.lost and self.lost is None:
            self.lost = (time_s, gap.reason)

    @property
    def last_total_j(self) -> float:
        """Unwrapped joules at the last reading."""
        return self._total_j

    @property
    def last_raw_j(self) -> float:
        """The last reading as the sensor showed it; NaN before the first."""
        return self._raw_j

    @property
    def last_read_s(self) -> float:
        """When the sensor was last read successfully; NaN before the first reading."""
        return self._read_s

    def power_w(self, over_s: float = 1.0) -> float | None:
        """Mean power of the last `over_s` seconds."""
        if len(self.times_s) < 2:
            return None
        return self._slope(len(self.times_s) - 1, over_s)

    def at(self, time_s: float) -> tuple[float, float]:
        """Energy since the first reading up to `time_s`, and its standard deviation."""
        times, totals = self.times_s, self.totals_j
        count = len(times)
        if count == 0:
            return 0.0, 0.0
        i = bisect_right(times, time_s)
        if i in (0, count):
            return self._extrapolated(time_s, count - 1 if i else 0)
        left, right = i - 1, i
        length_s = times[right] - times[left]
        if length_s <= 0.0:
            return totals[right], self._blur_j(right, 0.0)
        share = (time_s - times[left]) / length_s
        power_w = (totals[right] - totals[left]) / length_s
        blur_j = math.hypot(
            (1 - share) * self._blur_j(left, power_w), share * self._blur_j(right, power_w)
        )
        bend_w = self._bend_w(left, right, power_w, length_s)
        bend_j = bend_w * length_s * share * (1 - share)
        energy_j = totals[left] + share * (totals[right] - totals[left])
        return energy_j, math.hypot(blur_j, bend_j)

    def between(self, begin_s: float, end_s: float) -> Span | None:
        """Energy between two instants; None when there is no reading to speak of."""
        if not self.times_s:
            return None
        last_s = end_s
        lost = self.lost is not None and self.lost[0] < end_s
        silent = self.last_gap is not None and end_s - self._read_s > BRIDGE_S
        if lost or silent:
            last_s = max(begin_s, self._read_s)
        begin_j, begin_sigma_j = self.at(begin_s)
        end_j, end_sigma_j = self.at(last_s)
        resolution_j = self.domain.resolution
        sigma_j = math.sqrt(begin_sigma_j**2 + end_sigma_j**2 + resolution_j**2 / 6)
        # In a short window both ends are off in the same way: what is uncertain is the power.
        sigma_j = min(sigma_j, self._peak_w(begin_s, last_s) * (last_s - begin_s))
        for since_s, reset_s in self.resets:
            # A reset loses what was counted since the reading before it.
            guessed_s = min(reset_s, last_s) - max(since_s, begin_s)
            if guessed_s > 0 and reset_s - since_s <= BRIDGE_S:
                sigma_j = math.hypot(sigma_j, 0.5 * abs(self._slope_at(reset_s)) * guessed_s)
        sigma_j = math.hypot(sigma_j, self.bridged_sigma_j(begin_s, last_s))
        hole_s = end_s - last_s + self.uncounted_s(begin_s, last_s)
        duration_s = end_s - begin_s
        covered = max(0.0, 1 - hole_s / duration_s) if duration_s > 0 else 0.0
        return Span(end_j - begin_j, sigma_j, covered, self._moved(begin_s, end_s))

    def uncounted_s(self, begin_s: float, end_s: float) -> float:
        """Seconds whose joules were lost, because the counter began anew after a long gap."""
        return sum(
            max(0.0, min(reset_s, end_s) - max(since_s, begin_s))
            for since_s, reset_s in self.resets
            if reset_s - since_s > BRIDGE_S
        )

    def bridged_sigma_j(self, begin_s: float, end_s: float) -> float:
        """Standard deviation of the energy of bridged gaps between two instants."""
        return math.hypot(*(_share(b, begin_s, end_s) * b.sigma_j for b in self.bridges))

    def unseen_wraps(self, begin_s: float, end_s: float) -> tuple[float, int]:
        """Seconds of bridged gaps between two instants, and how many wraps they can hide."""
        shares = [(_share(b, begin_s, end_s), b) for b in self.bridges]
        unread_s = sum(share * bridge.unread_s for share, bridge in shares)
        return unread_s, sum(bridge.wraps for share, bridge in shares if share > 0)

    def _moved(self, begin_s: float, end_s: float) -> bool:
        """Whether the counter is alive: it changed, or has not been looked at since `begin_s`."""
        if len(self.times_s) < 2:
            return False
        if self.times_s[-1] > begin_s - self.period_s:
            return True
        unread = self._read_s <= begin_s + self.period_s and self.last_gap is None
        return unread and end_s - self._read_s < UNREAD_LIMIT_S

    def thin_before(self, time_s: float) -> None:
        """Thin out points that are old at `time_s`; energy between those that stay is the same."""
        cut = bisect_right(self.times_s, time_s - KEEP_S) - 1
        if cut - self._thin > THIN_AT_ONCE:
            kept = kept_points(self.times_s, self._thin, cut)
            for column in (self.times_s, self.totals_j, self._blurs_s):
                column[self._thin : cut] = array("d", (column[i] for i in kept))
            self._thin += len(kept)

    def point_blur_s(self, i: int) -> float:
        """Half-width of the time at which point `i` of the curve lies."""
        return self._blurs_s[i]

    def _push(self, time_s: float, since_s: float, doubt_s: float) -> None:
        age_s, blur_s = None, 0.0
        if self.ticks is not None:
            age_s, blur_s = self.ticks.age(time_s)
        if age_s is None:
            bound_s = min(self.period_s, since_s)
            age_s, blur_s = bound_s / 2, bound_s / 2
        blur_s += doubt_s
        point_s = time_s - age_s
        if self.times_s and point_s - self.times_s[-1] < SHORTEST_SEGMENT_S:
            # Two readings of practically the same moment: the later one is right.
            self.totals_j[-1] = self._total_j
            self._blurs_s[-1] = max(blur_s, self._blurs_s[-1])
            return
        self.times_s.append(point_s)
        self.totals_j.append(self._total_j)
        self._blurs_s.append(blur_s)

    def _difference(self, time_s: float, raw_j: float) -> float:
        difference_j = raw_j - self._raw_j
        wrap_j = self.domain.wrap_j
        if difference_j >= 0:
            return difference_j if wrap_j is None else self._bridged(time_s, difference_j, wrap_j)
        wrapped_j = counter_rise_j(difference_j, time_s - self._read_s, wrap_j)
        if wrapped_j is not None and wrap_j is not None:
            self.wraps += 1
            return self._bridged(time_s, wrapped_j, wrap_j)
        self.resets.append((self._read_s, time_s))
        if len(self.times_s) < 2 or time_s - self._read_s > BRIDGE_S:
            return 0.0
        return self._slope(len(self.times_s) - 1, 1.0) * (time_s - self._read_s)

    def _may_have_wrapped(self, time_s: float) -> bool:
        """Whether a counter that shows the same value can have gone round since it was read."""
        wrap_j = self.domain.wrap_j
        if wrap_j is None or len(self.times_s) < 2 or self.totals_j[-1] <= 0:
            return False
        return plausible_power_w(self.domain) * (time_s - self._read_s) >= wrap_j

    def _bridged(self, time_s: float, least_j: float, wrap_j: float) -> float:
        """Joules since the last reading, which are `least_j` plus a whole number of wraps.

        With P the highest plausible power and dt the time since the last reading, the energy is
        one of c_k = least_j + k wrap_j <= P dt. The model says m = p dt, with p the mean power
        before the gap, and a standard deviation of s = MODEL_ERROR m. The weight of c_k is
        exp(-(c_k - m)^2 / 2 s^2); energy and uncertainty are mean and deviation over all c_k.
        """
        gap_s = time_s - self._read_s
        most = math.floor((plausible_power_w(self.domain) * gap_s - least_j) / wrap_j)
        if most < 1:
            return least_j
        long = gap_s > BRIDGE_S
        if len(self.times_s) < 2:
            if long:  # no power is known that could stand for the gap
                self.resets.append((self._read_s, time_s))
            return 0.0 if long else least_j
        model_j = self._model_w() * gap_s
        model_sigma_j = MODEL_ERROR * model_j
        first = min(most, max(0, math.floor((model_j - 4 * model_sigma_j - least_j) / wrap_j)))
        last = min(most, max(first, math.ceil((model_j + 4 * model_sigma_j - least_j) / wrap_j)))
        if last - first > BRIDGES_KEPT:  # so many candidates say no more than the model
            energy_j, sigma_j, sure = model_j, model_sigma_j, False
        else:
            candidates_j = [least_j + k * wrap_j for k in range(first, last + 1)]
            energy_j, sigma_j, sure = _weighted(candidates_j, model_j, model_sigma_j)
        if long or not sure:
            self._add_bridge(Bridge(self._read_s, time_s, sigma_j, gap_s, most))
        return energy_j

    def _model_w(self) -> float:
        """Power that stands for a gap after the last reading."""
        if self.model_w is not None and self.times_s[-1] - self.times_s[0] < MODEL_S:
            return self.model_w
        return max(0.0, self._slope(len(self.times_s) - 1, MODEL_S))

    def _add_bridge(self, bridge: Bridge) -> None:
        self.bridges.append(bridge)
        if len(self.bridges) > BRIDGES_KEPT:
            one, two = self.bridges[:2]
            self.bridges[:2] = [
                Bridge(
                    one.since_s,
                    two.until_s,
                    math.hypot(one.sigma_j, two.sigma_j),
                    one.unread_s + two.unread_s,
                    one.wraps + two.wraps,
                )
            ]

    def _learn_period(self) -> None:
        """Some sensors update more slowly than declared; unchanged readings show it."""
        hold_s = self._read_s - self._changed_s
        if hold_s <= self.domain.update_period_s:
            return
        self._holds_s = [*self._holds_s[-31:], min(hold_s, LEARNED_PERIOD_LIMIT_S)]
        ordered = sorted(self._holds_s)
        typical_s = ordered[int(0.8 * (len(ordered) - 1))]
        self.period_s = max(self.domain.update_period_s, typical_s)

    def _blur_j(self, i: int, power_w: float) -> float:
        # uniform over [-blur, +blur]
        return self._blurs_s[i] * abs(power_w) / math.sqrt(3)

    def _bend_w(self, left: int, right: int, power_w: float, length_s: float) -> float:
        """How much power may have varied inside a segment, judged by its neighbours."""
        if length_s < 4 * self.period_s:
            return abs(power_w)
        bend_w = HIDDEN_SHARE * abs(power_w)
        if left > 0:
            bend_w = max(bend_w, abs(power_w - self._slope(left, length_s)))
        if right + 1 < len(self.times_s):
            bend_w = max(bend_w, abs(power_w - self._slope(right + 1, 0.0)))
        return bend_w

    def _extrapolated(self, time_s: float, i: int) -> tuple[float, float]:
        total_j = self.totals_j[i]
        distance_s = time_s - self.times_s[i]
        if len(self.times_s) < 2:
            return total_j, 0.0
        slope_w = self._slope(max(i, 1), max(8 * self.period_s, 0.05))
        sigma_j = math.hypot(self._blur_j(i, slope_w), 0.3 * slope_w * distance_s)
        return total_j + slope_w * distance_s, sigma_j

    def _slope(self, i: int, over_s: float) -> float:
        """Mean power of the segment that ends at point `i` and is at least `over_s` long."""
        times, totals = self.times_s, self.totals_j
        j = max(i - 1, 0)
        while j > 0 and times[i] - times[j] < over_s:
            j -= 1
        length_s = times[i] - times[j]
        return (totals[i] - totals[j]) / length_s if length_s > 0 else 0.0

    def _peak_w(self, begin_s: float, end_s: float) -> float:
        """The highest power seen in and beside a window of few points; infinite for longer ones."""
        first, last = bisect_right(self.times_s, begin_s), bisect_right(self.times_s, end_s)
        if last - first > FEW_POINTS or len(self.times_s) < 2:
            return math.inf
        segments = range(max(1, first - 1), min(last + 1, len(self.times_s) - 1) + 1)
        return max(self._slope(i, 0.0) for i in segments)

    def _slope_at(self, time_s: float) -> float:
        i = min(bisect_right(self.times_s, time_s), len(self.times_s) - 1)
        return self._slope(i, 0.0)


def _share(bridge: Bridge, begin_s: float, end_s: float) -> float:
    """Share of a bridge that lies between two instants."""
    inside_s = min(bridge.until_s, end_s) - max(bridge.since_s, begin_s)
    return max(0.0, inside_s) / (bridge.until_s - bridge.since_s)


def _weighted(
    candidates_j: list[float], model_j: float, sigma_j: float
) -> tuple[float, float, bool]:
    """Mean and standard deviation of candidates under a normal model, and whether one is sure."""
    nearest_j = min(candidates_j, key=lambda one_j: abs(one_j - model_j))
    if sigma_j <= 0:
        return nearest_j, 0.0, len(candidates_j) == 1
    # relative to the nearest one, so that a model that fits none of them does not give 0 / 0
    best = (nearest_j - model_j) ** 2
    weights = [math.exp((best - (c - model_j) ** 2) / (2 * sigma_j**2)) for c in candidates_j]
    total = sum(weights)
    mean_j = sum(w * c for w, c in zip(weights, candidates_j, strict=True)) / total
    variance = sum(w * (c - mean_j) ** 2 for w, c in zip(weights, candidates_j, strict=True))
    return mean_j, math.sqrt(variance / total), 1.0 / total >= SURE
