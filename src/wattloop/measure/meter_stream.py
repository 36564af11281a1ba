"""A meter as it is read: its energy curves, its buffer for the journal, and its domains."""

from __future__ import annotations

import math
import threading
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from wattloop.core.clock import Clock
from wattloop.core.records import SLOW_SENSOR_S, Domain, DomainKind, Gap, Signal
from wattloop.measure.energy_curve import (
    BRIDGE_S,
    CounterCurve,
    EnergySpan,
    GaugeCurve,
    UpdateClock,
)
from wattloop.meters.base import Meter

EDGE_READ_LIMIT_S = 50e-6
"""Windows read a meter at their edges only if a reading takes less than this."""
MEASURED_COST_WEIGHT = 0.1
CHANGE_LOOK_S = 0.0005
USUAL_GROWTH = 2.0
"""A reading that took longer than this many times the usual is left out of the estimate of the
usual time."""
READ_TRIES = 3
"""Number of further attempts after a delayed reading of a cheap meter, where its time matters."""
LATE_NEEDED_S = 0.1
"""A delayed reading is used only if the reading before it is older than this."""
STAMP_SLACK_S = 0.002
"""Readings of two processes closer together than this may be in the wrong order."""
SourceTrack = CounterCurve | GaugeCurve
GapListener = Callable[[float, str, Gap], None]
TickListener = Callable[[int, float, float], None]


class MeterStream:
    """One meter, its energy curves and its buffer for the journal. Safe from any thread.

    `sample` only takes a reading; `settle` adds the readings taken so far to the curves. Call
    `settle` before using the curves, or use the methods here, which do.
    """

    def __init__(self, meter: Meter, clock: Clock, index: int) -> None:
        self.meter = meter
        self.index = index
        self.domains = meter.domains
        self.signals: tuple[Signal, ...] = meter.signals
        slow = any(d.update_period_s >= SLOW_SENSOR_S for d in self.domains)
        self.tick_clocks = [
            UpdateClock(d.update_period_s) if d.update_period_s >= SLOW_SENSOR_S else None
            for d in self.domains
        ]
        self.tracks: list[SourceTrack] = [
            CounterCurve(d, t) if d.kind is DomainKind.COUNTER else GaugeCurve(d, t)
            for d, t in zip(self.domains, self.tick_clocks, strict=True)
        ]
        self.cost_s = max((d.read_cost_s for d in self.domains), default=0.0)
        self.slow = slow
        self.told_ticks = False
        """True if another stream of the same device finds the ticks."""
        self.last_s = -math.inf
        """Time of the last reading in the curves."""
        self.signal_values: dict[str, float] = {}
        self.signal_peaks: dict[str, float] = {}
        """Highest value of each signal so far."""
        self.on_signals: Callable[[float, Sequence[float]], None] | None = None
        """Called with the time and values of signals, which are then read more often."""
        self.on_gap: GapListener | None = None
        self.on_tick: TickListener | None = None
        """Called with the domain that changed, and the times after and by which it did."""
        self.widest_s = math.inf
        """A reading that took this much longer than usual was delayed, and is left out."""
        self._now_s = clock.now_s
        self.after_take: Callable[[], object] | None = None
        """Called after each reading that was added to the curves."""
        self._lock = threading.Lock()
        self._meter_lock = threading.Lock()
        self._usual_s = self.cost_s
        self._sampled: deque[tuple[float, float, Any]] = deque()
        self._arrived: deque[tuple[float, Sequence[float | Gap]]] = deque()
        self._own_until_s = -math.inf
        self._times_s: array[float] = array("d")
        self._values: array[float] = array("d")
        self._signal_times_s: array[float] = array("d")
        self._signal_values: array[float] = array("d")
        self._last_gaps: list[str | None] = [None] * len(self.domains)

    @property
    def cheap_at_edges(self) -> bool:
        """True if windows should read this meter when they begin and end."""
        return bool(self.domains) and not self.slow and self.cost_s <= EDGE_READ_LIMIT_S

    def read(self) -> float:
        """Read every domain into its curve; return the time of the reading.

        The time of a reading is unknown if the thread had to wait for a processor or for the
        interpreter during it. Where readings are cheap, another one is taken.
        """
        for _ in range(READ_TRIES if self.cheap_at_edges else 1):
            begin_s = self._now_s()
            time_s = self.sample()
            if self._now_s() - begin_s <= STAMP_SLACK_S:
                break
        with self._lock:
            self.settle()
        return time_s

    def sample(self) -> float:
        """Take a reading, to be settled later; return its time."""
        with self._meter_lock:
            return self._sample()

    def sample_at_edge(self) -> None:
        """Take a reading, unless another thread is taking one."""
        if self._meter_lock.acquire(blocking=False):
            try:
                self._sample()
            finally:
                self._meter_lock.release()

    def _sample(self) -> float:
        before_s = self._now_s()
        try:
            sampled = self.meter.sample()
        except Exception as error:  # noqa: BLE001 - a faulty meter must not stop the others
            sampled = error
        after_s = self._now_s()
        # The caller holds the meter's lock, so readings are in time order.
        self._sampled.append((before_s, after_s, sampled))
        return (before_s + after_s) / 2

    def settle(self) -> None:
        """Add the readings taken so far to the curves; the caller holds `lock`."""
        waiting = self._sampled
        while waiting:
            before_s, after_s, sampled = waiting.popleft()
            if self._arrived:
                self._take_arrived(before_s - self._slack_s)
            self._own_until_s = after_s
            took_s = after_s - before_s
            late = took_s > 2 * self._usual_s + self.widest_s
            self.cost_s += MEASURED_COST_WEIGHT * (took_s - self.cost_s)
            if late:
                continue
            # The reading was taken between the two times; half of the usual duration is the best
            # estimate.
            doubt_s = max(0.0, took_s - self._usual_s) / 2
            if 2 * doubt_s > STAMP_SLACK_S and before_s - self.last_s < LATE_NEEDED_S:
                continue
            usual_s = min(took_s, USUAL_GROWTH * self._usual_s)
            self._usual_s += MEASURED_COST_WEIGHT * (usual_s - self._usual_s)
            self.take((before_s + after_s) / 2, self._decoded(sampled), doubt_s)
            if self.after_take is not None:
                self.after_take()
        if self._arrived:
            self._take_arrived(math.inf)

    def arrive(self, time_s: float, values: Sequence[float | Gap]) -> None:
        """Add a reading of this source that another process took; the caller holds `lock`.

        Readings arrive in time order, with a delay.
        """
        self._arrived.append((time_s, values))

    def arrive_signals(self, time_s: float, values: Sequence[float]) -> None:
        """Add signals that another process read; the caller holds `lock`."""
        self._signal_times_s.append(time_s)
        self._signal_values.extend(values)
        for signal, value in zip(self.signals, values, strict=True):
            self._note_signal(signal.name, value)

    def _take_arrived(self, until_s: float) -> None:
        """Return the received readings that lie clearly between the readings of this process.

        Each process uses its own timestamps. Two readings whose order is uncertain could make a
        counter run backwards. Then the reading of this process is used, since a window may have
        requested it.
        """
        arrived = self._arrived
        while arrived and arrived[0][0] < until_s:
            time_s, values = arrived.popleft()
            if time_s > max(self.last_s, self._own_until_s + self._slack_s):
                self.take(time_s, values)

    @property
    def _slack_s(self) -> float:
        return STAMP_SLACK_S + self.cost_s

    def _decoded(self, sampled: Any) -> list[float | Gap]:
        if isinstance(sampled, Exception):
            return self._failed(sampled, len(self.domains))
        try:
            return self._checked(self.meter.decoded(sampled), len(self.domains))
        except Exception as error:  # noqa: BLE001 - a faulty meter must not stop the others
            return self._failed(error, len(self.domains))

    def _checked(self, values: Sequence[float | Gap], count: int) -> list[float | Gap]:
        """Check readings against the contract: one per domain, each a finite number or a gap."""
        if len(values) != count:
            raise ValueError(f"{len(values)} values instead of {count}")
        return [
            v if isinstance(v, Gap) or math.isfinite(v) else Gap(f"{self.meter.name} gave {v}")
            for v in values
        ]

    def _failed(self, error: Exception, count: int) -> list[float | Gap]:
        return [Gap(f"{self.meter.name} failed: {error!r}")] * count

    def take(self, time_s: float, values: Sequence[float | Gap], doubt_s: float = 0.0) -> None:
        """Add readings to the curves and to the buffer for the journal.

        They were taken at `time_s`, give or take `doubt_s`.
        """
        self._times_s.append(time_s)
        self._values.extend([math.nan if isinstance(v, Gap) else v for v in values])
        self.follow(time_s, values, doubt_s)

    def follow(self, time_s: float, values: Sequence[float | Gap], doubt_s: float = 0.0) -> None:
        """Add readings to the curves only: another process writes them."""
        self.last_s = time_s
        for i, value in enumerate(values):
            if isinstance(value, Gap):
                self.tracks[i].gap(time_s, value)
                self._report(i, time_s, value)
            else:
                self.tracks[i].feed(time_s, value, doubt_s)
                self._last_gaps[i] = None

    def counters_at(self, time_s: float) -> list[float | None]:
        """Return the reading of each counter at an instant near the last one; None for a gauge."""
        with self._lock:
            self.settle()
            return [t.raw_at(time_s) if isinstance(t, CounterCurve) else None for t in self.tracks]

    def insert(self, time_s: float, values: Sequence[float | None]) -> None:
        """Add counters that another process read, also between readings of this process."""
        with self._lock:
            self.settle()
            for track, value in zip(self.tracks, values, strict=True):
                if isinstance(track, CounterCurve) and value is not None:
                    track.insert(time_s, value)
            self.last_s = max(self.last_s, time_s)

    def read_signals(self, *, journaled: bool = True) -> None:
        """Read signals such as utilisation, clocks and temperatures.

        Args:
            journaled: whether they are written to the journal, or only passed to `on_signals`.
        """
        if not self.signals:
            return
        with self._meter_lock:
            try:
                values = self._checked(self.meter.read_signals(), len(self.signals))
            except Exception as error:  # noqa: BLE001 - a faulty meter must not stop the others
                values = self._failed(error, len(self.signals))
        numbers = [math.nan if isinstance(value, Gap) else float(value) for value in values]
        time_s = self._now_s()
        with self._lock:
            if journaled:
                self._signal_times_s.append(time_s)
                self._signal_values.extend(numbers)
            for signal, number in zip(self.signals, numbers, strict=True):
                self._note_signal(signal.name, number)
        if self.on_signals is not None:
            self.on_signals(time_s, numbers)

    def _note_signal(self, name: str, value: float) -> None:
        self.signal_values[name] = value
        if not math.isnan(value):
            self.signal_peaks[name] = max(value, self.signal_peaks.get(name, value))

    def drained(self) -> tuple[array[float], array[float], array[float], array[float]]:
        """Return and clear times and values read since the last call, then those of the signals."""
        with self._lock:
            self.settle()
            taken = (self._times_s, self._values, self._signal_times_s, self._signal_values)
            self._times_s, self._values = array("d"), array("d")
            self._signal_times_s, self._signal_values = array("d"), array("d")
        return taken

    def between(self, i: int, begin_s: float, end_s: float) -> EnergySpan | None:
        """Return the energy of domain number `i` between two instants."""
        with self._lock:
            self.settle()
            return self.tracks[i].between(begin_s, end_s)

    def find_ticks(self, limit_s: float, sleep: Callable[[float], None]) -> None:
        """Poll a slow but cheap sensor until it has changed twice, to learn its update times."""
        clocks = self.tick_clocks
        if not any(clocks) or self.told_ticks or self.cost_s > 1e-3:
            return
        end_s = self._now_s() + limit_s
        last: list[float | Gap] = []
        last_s = math.nan
        seen = [0] * len(clocks)
        while self._now_s() < end_s:
            with self._meter_lock:
                try:
                    values = self._checked(self.meter.read(), len(clocks))
                except Exception:  # noqa: BLE001 - the next reading will say what is wrong
                    return
                now_s = self._now_s()
            for i, clock in enumerate(clocks):
                changed = last and values[i] != last[i] and not isinstance(values[i], Gap)
                if clock is not None and changed and not isinstance(last[i], Gap):
                    clock.saw_change(last_s, now_s)
                    seen[i] += 1
                    if self.on_tick is not None:
                        self.on_tick(i, last_s, now_s)
            if all(n >= 2 or clock is None for n, clock in zip(seen, clocks, strict=True)):
                return
            last, last_s = values, now_s
            sleep(0.002)

    def await_change(self, limit_s: float, sleep: Callable[[float], None]) -> None:
        """Read until every counter has changed, so that its age at this edge is known."""
        counters = [t for t in self.tracks if isinstance(t, CounterCurve)]
        if not self.cheap_at_edges or not counters:
            return
        begin_s = self.read()
        end_s = begin_s + limit_s
        while self._now_s() < end_s:
            if all(t.times_s and t.times_s[-1] > begin_s for t in counters):
                return
            sleep(CHANGE_LOOK_S)
            self.read()

    def quiet_time_s(self, time_s: float) -> float:
        """Return the time of the next reading of a slow sensor, away from its update."""
        for clock in self.tick_clocks:
            if clock is not None:
                return clock.quiet_time_s(time_s)
        return time_s

    def thin_before(self, time_s: float) -> None:
        """Downsample old points of the curves."""
        with self._lock:
            for track in self.tracks:
                track.thin_before(time_s)

    def renew_lock(self) -> None:
        """Replace the lock in a forked child: a thread that does not exist here may hold it."""
        self._lock = threading.Lock()
        self._meter_lock = threading.Lock()

    @property
    def lock(self) -> threading.Lock:
        """Lock that protects the curves."""
        return self._lock

    def _report(self, i: int, time_s: float, gap: Gap) -> None:
        if self._last_gaps[i] != gap.reason and self.on_gap is not None:
            self._last_gaps[i] = gap.reason
            self.on_gap(time_s, self.domains[i].name, gap)


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
        """Return the joules that only the counter saw, on either side of the instant."""
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
        """Extrapolate beyond the first or last point of the counter with the scaled gauge."""
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
    """The source chosen for one domain, and the gauge that shapes a slow counter."""

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
    """Choose a source per domain: the first stream; a later gauge shapes a slow counter."""
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
