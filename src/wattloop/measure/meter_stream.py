"""A meter as it is read: its energy curves, and its buffer for the journal."""

from __future__ import annotations

import math
import threading
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from wattloop.core.clock import Clock
from wattloop.core.records import SLOW_SENSOR_S, DomainKind, Gap, Signal
from wattloop.measure.energy_curve import CounterCurve, EnergySpan, GaugeCurve, UpdateClock
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

    def read_signals(self) -> None:
        """Read signals such as utilisation, clocks and temperatures."""
        if not self.signals:
            return
        with self._meter_lock:
            try:
                values = self._checked(self.meter.read_signals(), len(self.signals))
            except Exception as error:  # noqa: BLE001 - a faulty meter must not stop the others
                values = self._failed(error, len(self.signals))
        with self._lock:
            self._signal_times_s.append(self._now_s())
            for signal, value in zip(self.signals, values, strict=True):
                number = math.nan if isinstance(value, Gap) else float(value)
                self._signal_values.append(number)
                self._note_signal(signal.name, number)

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
