"""Energy curves: readings of a counter or a gauge, integrated between any two instants."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections import deque
from typing import NamedTuple

from wattloop.core.records import Domain, Gap, Scope, counter_rise_j, highest_power_w

BRIDGE_S = 2.0
"""Gaps of a gauge up to this length are interpolated; longer gaps are left out and reported. A
failing counter is extrapolated for at most this time."""
HIDDEN_SHARE = 0.3
"""Power may vary by this share between two points without a trace in either."""
FEW_POINTS = 4
"""A window that spans at most this many points adds little to the power around it."""
KEEP_S = 900.0
"""Points older than this are downsampled, so that a run of weeks fits into memory."""
THIN_S = 10.0
"""Spacing of old points; the energy between two of them stays exact."""
THIN_AT_ONCE = 4_096
"""Number of points that are downsampled at once."""
PLAUSIBLE_W = highest_power_w(Scope.GPU)
"""Highest power of a package, memory or card, where the sensor states none."""


class EnergySpan(NamedTuple):
    """Energy of one domain between two instants.

    `sigma_j` is one standard deviation; `covered` the share of the time with readings; `moved`
    is false for a counter that showed no change at all.
    """

    energy_j: float
    sigma_j: float
    covered: float
    moved: bool = True


def kept_points(times_s: array[float], first: int, last: int) -> list[int]:
    """Return the points from `first` to `last` that stay; those before are downsampled."""
    kept: list[int] = []
    kept_s = times_s[first - 1] if first else -math.inf
    for i in range(first, last):
        if times_s[i] - kept_s >= THIN_S:
            kept.append(i)
            kept_s = times_s[i]
    return kept


def plausible_power_w(domain: Domain) -> float:
    """Return the highest power of a domain; its counter wraps no faster than at this."""
    return domain.max_power_w or PLAUSIBLE_W


# Update times of slow sensors.
#
# Some sensors, such as a GPU's, change only every 100 ms. With known update times the age of each
# reading is known too. A window is then bounded to a millisecond or two instead of a whole period,
# without reading more often.

RELATIVE_DRIFT = 0.01
"""Relative error of a declared period; shrinks as ticks are added."""
JITTER_S = 0.001
"""Jitter of a sensor's own clock: about a millisecond."""
QUIET_SHARE = 0.35
"""Phase at which to read: far from both ticks."""
MAX_ERROR_SHARE = 0.25
"""Beyond this share of a period the phase is considered lost."""


class UpdateClock:
    """Phase and period of a sensor's updates, estimated from the instants at which it changed."""

    def __init__(self, period_s: float) -> None:
        self.period_s = period_s
        self.error_s = 0.0
        self._first_s: float | None = None
        self._last_s: float | None = None
        self._drift = RELATIVE_DRIFT

    def saw_change(self, after_s: float, by_s: float) -> None:
        """Record that the sensor changed somewhere in `(after_s, by_s]`."""
        tick_s = (after_s + by_s) / 2
        error_s = (by_s - after_s) / 2
        if self._last_s is not None and self._first_s is not None:
            periods = round((tick_s - self._last_s) / self.period_s)
            if periods >= 1:
                found_s = (tick_s - self._last_s) / periods
                if abs(found_s - self.period_s) < MAX_ERROR_SHARE * self.period_s:
                    self._refine(tick_s, error_s)
        if self._first_s is None:
            self._first_s = tick_s
        self._last_s = tick_s
        self.error_s = error_s + JITTER_S

    def age(self, time_s: float) -> tuple[float | None, float]:
        """Return seconds from the last update to `time_s`, with uncertainty; None if unknown."""
        phase_s, blur_s = self._phase(time_s)
        if phase_s is None or min(phase_s, self.period_s - phase_s) <= blur_s:
            return None, 0.0  # unknown, or too close to a tick to tell which one was seen
        return phase_s, blur_s

    def quiet_time_s(self, time_s: float) -> float:
        """Return the first instant from `time_s` on that is safely between two ticks."""
        phase_s, _ = self._phase(time_s)
        if phase_s is None:
            return time_s
        wait_s = (QUIET_SHARE * self.period_s - phase_s) % self.period_s
        return time_s + (wait_s if wait_s < self.period_s / 2 else 0.0)

    def _phase(self, time_s: float) -> tuple[float | None, float]:
        """Return the phase of `time_s` in a period, with uncertainty; None once it is lost."""
        if self._last_s is None:
            return None, 0.0
        distance_s = time_s - self._last_s
        blur_s = self.error_s + abs(distance_s) * self._drift
        if blur_s > MAX_ERROR_SHARE * self.period_s:
            return None, 0.0
        return distance_s % self.period_s, blur_s

    def _refine(self, tick_s: float, error_s: float) -> None:
        """Refine the period: the longer the base line, the smaller its error."""
        assert self._first_s is not None
        base_s = tick_s - self._first_s
        periods = round(base_s / self.period_s)
        if periods < 1:
            return
        # Only use the long base line while it cannot have slipped by half a period.
        if base_s * self._drift < self.period_s / 2:
            drift = max(1e-5, 2 * (error_s + JITTER_S) / base_s)
            # Two consecutive ticks are a worse estimate of the period than the declared one.
            if drift < self._drift:
                self.period_s = base_s / periods
                self._drift = drift
        else:
            self._first_s = tick_s
            self._drift = RELATIVE_DRIFT


# Energy curve of a counter.
#
# A counter's reading is as old as its sensor's last update, so a point of the energy curve lies at
# `t - age`. The age is bounded by the update period and by the time since the last unchanged
# reading, or known from the sensor's ticks (`UpdateClock`). Between points the curve is
# interpolated. Standard deviations describe what the sensor would have shown with an infinitely
# fine clock; a systematic error of the sensor itself is stated with the domain.

LEARNED_PERIOD_LIMIT_S = 0.25
UNREAD_LIMIT_S = 60.0
"""A counter that has not been read for longer than this is not extrapolated at its last power."""
SHORTEST_SEGMENT_S = 1e-5
EXACT_S = 1e-6
"""An unchanged value of a counter that is always current (a computed share) means that no energy
was used; of a sensor only that it has not been updated."""
RESETS_KEPT = 1_000
"""A broken counter may fall at every reading; this many falls are recorded."""
BRIDGES_KEPT = 100
"""Beyond this many bridges the two oldest are merged."""
MODEL_S = 10.0
"""Length of the time before a gap whose mean power is used as the power of the gap."""
MODEL_ERROR = 0.5
"""Relative standard deviation of that power: a suspended job idles, another job may begin."""
SURE = 0.999
"""Probability from which on a number of wraps is considered certain."""


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


class SensorCurve:
    """Readings and gaps of one domain, as points over time."""

    def __init__(self, domain: Domain, ticks: UpdateClock | None = None) -> None:
        self.domain = domain
        self.ticks = ticks
        self.period_s = domain.update_period_s
        self.lost: tuple[float, str] | None = None
        self.last_gap: tuple[float, str] | None = None
        self.times_s: array[float] = array("d")
        self._columns = [self.times_s]
        self._thin = 0
        self._read_s = math.nan

    def gap(self, time_s: float, gap: Gap) -> None:
        """Record a failed reading.

        A counter continues to count, so its next good reading includes the joules of the gap.
        """
        self.last_gap = (time_s, gap.reason)
        if gap.lost and self.lost is None:
            self.lost = (time_s, gap.reason)

    @property
    def last_read_s(self) -> float:
        """Time of the last successful reading; NaN before the first."""
        return self._read_s

    def thin_before(self, time_s: float) -> None:
        """Downsample points that are old at `time_s`; energies between the rest stay."""
        cut = bisect_right(self.times_s, time_s - KEEP_S) - 1
        if cut - self._thin > THIN_AT_ONCE:
            kept = kept_points(self.times_s, self._thin, cut)
            for column in self._columns:
                column[self._thin : cut] = array("d", (column[i] for i in kept))
            self._thin += len(kept)

    def _column(self) -> array[float]:
        """Return a new column with a value for each point."""
        self._columns.append(array("d"))
        return self._columns[-1]


class CounterCurve(SensorCurve):
    """The energy curve of a counter: unwrapped joules since the first reading."""

    def __init__(self, domain: Domain, ticks: UpdateClock | None = None) -> None:
        super().__init__(domain, ticks)
        self._exact = domain.update_period_s <= EXACT_S
        self.wraps = 0
        self.resets: deque[tuple[float, float]] = deque(maxlen=RESETS_KEPT)
        """Last reading before the counter was reset, and the first after it."""
        self.bridges: list[Bridge] = []
        self.model_w: float | None = None
        """Mean power before the first reading, where another process measured it."""
        self.totals_j = self._column()
        self._blurs_s = self._column()
        self._raw_j = math.nan
        self._total_j = 0.0
        self._doubt_s = 0.0
        self._changed_s = math.nan
        self._holds_s: list[float] = []

    def feed(self, time_s: float, raw_j: float, doubt_s: float = 0.0) -> None:
        """Add a reading: joules as the sensor shows them. It ends a gap.

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

    @property
    def last_total_j(self) -> float:
        """Unwrapped joules at the last reading."""
        return self._total_j

    @property
    def last_raw_j(self) -> float:
        """The last reading as the sensor showed it; NaN before the first."""
        return self._raw_j

    def raw_at(self, time_s: float) -> float | None:
        """Return the reading that the sensor would have shown at `time_s`, near the last one; None
        where readings do not reach.
        """
        if len(self.times_s) < 2 or time_s < self.times_s[0] or self._reset_since(time_s):
            return None
        if time_s - self._read_s > BRIDGE_S:
            return None
        raw_j = self._raw_j - (self._total_j - self.at(time_s)[0])
        return raw_j if self.domain.wrap_j is None else raw_j % self.domain.wrap_j

    def insert(self, time_s: float, raw_j: float) -> None:
        """Add a reading of another process, as `raw_at` there gives it.

        It may lie between readings of this process, or after them. One that does not fit between
        its neighbours is ignored.
        """
        i, count = bisect_right(self.times_s, time_s), len(self.times_s)
        if i <= self._thin or self._reset_since(time_s):
            return
        since_j = self._raw_j - raw_j
        wrap_j = self.domain.wrap_j
        if i == count:
            rise_j = counter_rise_j(-since_j, time_s - self._read_s, wrap_j)
            if rise_j is None:
                return
            total_j = self._total_j + rise_j
        else:
            total_j = self._total_j - (since_j if wrap_j is None else since_j % wrap_j)
            if not self.totals_j[i - 1] <= total_j <= self.totals_j[i]:
                return
        self.times_s.insert(i, time_s)
        self.totals_j.insert(i, total_j)
        self._blurs_s.insert(i, self._blurs_s[i - 1])
        if i == count:
            self._total_j, self._raw_j = total_j, raw_j
            self._read_s = self._changed_s = time_s

    def _reset_since(self, time_s: float) -> bool:
        return bool(self.resets) and self.resets[-1][1] > time_s

    def power_w(self, over_s: float = 1.0) -> float | None:
        """Return the mean power of the last `over_s` seconds."""
        if len(self.times_s) < 2:
            return None
        return self._slope(len(self.times_s) - 1, over_s)

    def at(self, time_s: float) -> tuple[float, float]:
        """Return the energy from the first reading to `time_s`, and its standard deviation."""
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

    def between(self, begin_s: float, end_s: float) -> EnergySpan | None:
        """Return the energy between two instants; None without a usable reading."""
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
        # In a short window both ends have the same error, so only the power is uncertain.
        sigma_j = min(sigma_j, self._peak_w(begin_s, last_s) * (last_s - begin_s))
        for since_s, reset_s in self.resets:
            # A reset loses the energy counted since the reading before it.
            guessed_s = min(reset_s, last_s) - max(since_s, begin_s)
            if guessed_s > 0 and reset_s - since_s <= BRIDGE_S:
                sigma_j = math.hypot(sigma_j, 0.5 * abs(self._slope_at(reset_s)) * guessed_s)
        sigma_j = math.hypot(sigma_j, self.bridged_sigma_j(begin_s, last_s))
        hole_s = end_s - last_s + self.uncounted_s(begin_s, last_s)
        duration_s = end_s - begin_s
        covered = max(0.0, 1 - hole_s / duration_s) if duration_s > 0 else 0.0
        return EnergySpan(end_j - begin_j, sigma_j, covered, self._moved(begin_s, end_s))

    def uncounted_s(self, begin_s: float, end_s: float) -> float:
        """Return seconds whose joules were lost because the counter was reset after a long gap."""
        return sum(
            max(0.0, min(reset_s, end_s) - max(since_s, begin_s))
            for since_s, reset_s in self.resets
            if reset_s - since_s > BRIDGE_S
        )

    def bridged_sigma_j(self, begin_s: float, end_s: float) -> float:
        """Return the standard deviation of the energy of bridged gaps between two instants."""
        return math.hypot(*(_share(b, begin_s, end_s) * b.sigma_j for b in self.bridges))

    def unseen_wraps(self, begin_s: float, end_s: float) -> tuple[float, int]:
        """Return seconds of bridged gaps between two instants, and the wraps they can hide."""
        shares = [(_share(b, begin_s, end_s), b) for b in self.bridges]
        unread_s = sum(share * bridge.unread_s for share, bridge in shares)
        return unread_s, sum(bridge.wraps for share, bridge in shares if share > 0)

    def _moved(self, begin_s: float, end_s: float) -> bool:
        """Return True if the counter works: it changed, or has not been read since `begin_s`."""
        if len(self.times_s) < 2:
            return False
        if self.times_s[-1] > begin_s - self.period_s:
            return True
        unread = self._read_s <= begin_s + self.period_s and self.last_gap is None
        return unread and end_s - self._read_s < UNREAD_LIMIT_S

    def point_blur_s(self, i: int) -> float:
        """Return the half-width of the time of point `i`."""
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
            # Two readings at practically the same time: the later one is right.
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
        """Return True if a counter with an unchanged value can have wrapped meanwhile."""
        wrap_j = self.domain.wrap_j
        if wrap_j is None or len(self.times_s) < 2 or self.totals_j[-1] <= 0:
            return False
        return plausible_power_w(self.domain) * (time_s - self._read_s) >= wrap_j

    def _bridged(self, time_s: float, least_j: float, wrap_j: float) -> float:
        """Return the joules since the last reading: `least_j` plus a whole number of wraps.

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
            if long:  # no power before the gap is known
                self.resets.append((self._read_s, time_s))
            return 0.0 if long else least_j
        model_j = self._model_w() * gap_s
        model_sigma_j = MODEL_ERROR * model_j
        first = min(most, max(0, math.floor((model_j - 4 * model_sigma_j - least_j) / wrap_j)))
        last = min(most, max(first, math.ceil((model_j + 4 * model_sigma_j - least_j) / wrap_j)))
        if last - first > BRIDGES_KEPT:  # with this many candidates the result is the model itself
            energy_j, sigma_j, sure = model_j, model_sigma_j, False
        else:
            candidates_j = [least_j + k * wrap_j for k in range(first, last + 1)]
            energy_j, sigma_j, sure = _weighted(candidates_j, model_j, model_sigma_j)
        if long or not sure:
            self._add_bridge(Bridge(self._read_s, time_s, sigma_j, gap_s, most))
        return energy_j

    def _model_w(self) -> float:
        """Return the power assumed for a gap after the last reading."""
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
        """Learn the period of a sensor that updates more slowly than declared."""
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
        """Return the possible variation of power inside a segment, judged by its neighbours."""
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
        """Return the mean power of the segment of `over_s` or longer that ends at point `i`; at
        most the highest plausible one, which two points at almost the same time may exceed.
        """
        times, totals = self.times_s, self.totals_j
        j = max(i - 1, 0)
        while j > 0 and times[i] - times[j] < over_s:
            j -= 1
        length_s = times[i] - times[j]
        power_w = (totals[i] - totals[j]) / length_s if length_s > 0 else 0.0
        return min(power_w, plausible_power_w(self.domain))

    def _peak_w(self, begin_s: float, end_s: float) -> float:
        """Return the highest power around a window of few points; infinite for longer ones."""
        first, last = bisect_right(self.times_s, begin_s), bisect_right(self.times_s, end_s)
        if last - first > FEW_POINTS or len(self.times_s) < 2:
            return math.inf
        segments = range(max(1, first - 1), min(last + 1, len(self.times_s) - 1) + 1)
        return max(self._slope(i, 0.0) for i in segments)

    def _slope_at(self, time_s: float) -> float:
        i = min(bisect_right(self.times_s, time_s), len(self.times_s) - 1)
        return self._slope(i, 0.0)


def _share(bridge: Bridge, begin_s: float, end_s: float) -> float:
    """Return the share of a bridge that lies between two instants."""
    inside_s = min(bridge.until_s, end_s) - max(bridge.since_s, begin_s)
    return max(0.0, inside_s) / (bridge.until_s - bridge.since_s)


def _weighted(
    candidates_j: list[float], model_j: float, sigma_j: float
) -> tuple[float, float, bool]:
    """Return mean and deviation of candidates under a normal model; True if one is sure."""
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


UNSEEN_PERIODS = 4
"""Readings further apart than this many updates may hide a change between them."""


class GaugeCurve(SensorCurve):
    """The energy curve of a gauge: its integral by the trapezoidal rule."""

    def __init__(self, domain: Domain, ticks: UpdateClock | None = None) -> None:
        super().__init__(domain, ticks)
        self.watts = self._column()
        self._cumulative_j = self._column()
        self._cumulative_var = self._column()
        self._uncovered_s = self._column()
        self._unseen_s2 = self._column()
        self._gap_since: float | None = None

    def feed(self, time_s: float, power_w: float, doubt_s: float = 0.0) -> None:
        """Add a reading in watts. It ends a gap.

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
        super().gap(time_s, gap)
        if self._gap_since is None:
            self._gap_since = time_s

    def power_w(self, over_s: float = 1.0) -> float | None:
        """Return the power at the last reading; a gauge needs no `over_s`."""
        return self.watts[-1] if self.watts else None

    def at(self, time_s: float) -> tuple[float, float]:
        """Return the energy from the first reading to `time_s`, and its standard deviation."""
        energy_j, variance, _ = self._cumulated(time_s)
        return energy_j, math.sqrt(variance)

    def between(self, begin_s: float, end_s: float) -> EnergySpan | None:
        """Return the energy between two instants; None without a usable reading."""
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
        # In a short window both ends have the same error, so only the power is uncertain.
        variance = min(variance, (self._peak_w(begin_s, last_s) * length_s) ** 2)
        return EnergySpan(end_j - begin_j, math.sqrt(variance), covered)

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
        """Return energy, variance and uncovered seconds up to `time_s`."""
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
        """Return the variance of changes between readings much further apart than updates."""
        times = self.times_s
        first, last = bisect_right(times, begin_s), bisect_right(times, end_s)
        if first == last:
            unseen_s2 = self._unseen(end_s - begin_s)
        else:
            unseen_s2 = self._unseen(times[first] - begin_s) + self._unseen(end_s - times[last - 1])
            unseen_s2 += self._unseen_s2[last - 1] - self._unseen_s2[first]
        return (HIDDEN_SHARE * mean_w) ** 2 * unseen_s2

    def _unseen(self, length_s: float) -> float:
        """Return the squared time between two readings if it may hide a change, else 0."""
        seen_s = UNSEEN_PERIODS * self.period_s + self.domain.averaging_s
        return length_s**2 if length_s > seen_s else 0.0

    def _peak_w(self, begin_s: float, end_s: float) -> float:
        """Return the highest power around a window of few points; infinite for longer ones."""
        first, last = bisect_right(self.times_s, begin_s), bisect_right(self.times_s, end_s)
        if last - first > FEW_POINTS:
            return math.inf
        return max(map(abs, self.watts[max(0, first - 2) : last + 2]))

    def _variation_w(self, time_s: float) -> float:
        """Return the step of the power around an instant."""
        i = bisect_right(self.times_s, time_s)
        near = self.watts[max(0, i - 2) : i + 2]
        return max(near) - min(near) if near else 0.0
