"""The sensors of a node as one energy curve each, which a restarted agent continues."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from wattloop.core.clock import Clock
from wattloop.core.records import Domain, DomainKind, Gap, counter_rise_j, highest_power_w
from wattloop.core.results import Missing
from wattloop.measure.energy_curve import BRIDGE_S, MODEL_S, CounterCurve, EnergySpan
from wattloop.measure.meter_stream import (
    DomainSource,
    FusedCurve,
    MeterStream,
    domain_sources,
    selected,
)
from wattloop.measure.window_energy import unseen_wraps_reason
from wattloop.meters.base import Context, DeviceProcess, Meter, Reading
from wattloop.meters.registry import detect

SLACK_S = 0.25
"""A reading may be stamped this late on a busy machine."""
NEW_START_AFTER = 3
"""A counter that jumped and continues from there was reset; the jump is not counted."""


def highest_w(domain: Domain) -> float:
    return domain.max_power_w or highest_power_w(domain.scope)


class PlausibleMeter(Meter):
    """A meter whose implausible readings become gaps: jumps and negative values.

    A counter that jumped is shown again from zero, which tracks understand as a new beginning.
    """

    name: ClassVar[str] = "plausible"

    def __init__(self, meter: Meter, clock: Clock) -> None:
        self.meter = meter
        self.name = meter.name  # type: ignore[misc]  # each wears the name of the one it checks
        self._clock = clock
        self._last: list[tuple[float, float] | None] = [None] * len(meter.domains)
        self._zero_j = [0.0] * len(meter.domains)
        self._jumps = [0] * len(meter.domains)
        self._domains = meter.domains
        self._refused = meter.refused
        self._signals = meter.signals

    def read_signals(self) -> Sequence[Reading]:
        return self.meter.read_signals()

    def read(self) -> Sequence[Reading]:
        values = list(self.meter.decoded(self.meter.sample()))
        now_s = self._clock.now_s()
        return [
            value if isinstance(value, Gap) else self._checked(i, domain, value, now_s)
            for i, (domain, value) in enumerate(zip(self.domains, values, strict=True))
        ]

    def close(self) -> None:
        self.meter.close()

    def _checked(self, i: int, domain: Domain, value: float, now_s: float) -> Reading:
        if value < 0:
            return Gap(f"{domain.name}: a reading below zero, which cannot be")
        most_w = highest_w(domain)
        if domain.kind is DomainKind.GAUGE:
            if value <= most_w:
                return value
            return Gap(f"{domain.name}: more than {most_w:g} W, which cannot be")
        last = self._last[i]
        if last is not None:
            most_j = most_w * (now_s - last[0] + domain.update_period_s + SLACK_S)
            if value - last[1] > most_j and not self._is_new_start(i):
                return Gap(f"{domain.name}: a jump of more than {most_w:g} W, which cannot be")
            if value - last[1] > most_j:
                self._zero_j[i] = value
            elif value < last[1]:
                self._zero_j[i] = 0.0 if self._zero_j[i] > value else self._zero_j[i]
        self._jumps[i] = 0
        self._last[i] = (now_s, value)
        return value - self._zero_j[i]

    def _is_new_start(self, i: int) -> bool:
        self._jumps[i] += 1
        return self._jumps[i] >= NEW_START_AFTER


def continues_counter(domain: Domain, kept: Mapping[str, Any], raw_j: float, read_s: float) -> bool:
    """Return True when a counter's reading continues the earlier one."""
    gap_s = read_s - kept["read_s"]
    # How often it wrapped is the energy curve's to judge.
    gained_j = counter_rise_j(raw_j - kept["raw_j"], gap_s, domain.wrap_j)
    if gained_j is None or gap_s < 0:
        return False
    return bool(gained_j <= highest_w(domain) * (gap_s + 1.0))


OWN_ZERO = frozenset({"perf", "estimate", "virtual-node"})
"""Meters that count from the moment a process opened them: a restart begins at zero."""
GapListener = Callable[[float, str, Gap], None]
LONGEST_LAG_S, SHORTEST_LAG_S = 0.25, 0.02


class NodeSensors:
    """Every domain of the node, read together.

    Energy is asked for up to `lag_s` ago: by then every sensor has been read since, so that the
    instant lies between two points of its curve.
    """

    def __init__(self, context: Context) -> None:
        self._clock = context.clock
        self._inventory = detect(context, explain=False)
        devices = context.settings.devices
        families = [d.partition(":")[0] for d in devices if not d.startswith("-")]
        left_out = [d for d in devices if d.startswith("-")]
        self.missing: list[Missing] = [
            part
            for part in self._inventory.missing()
            if selected(part.name.partition(":")[0], families) and selected(part.name, left_out)
        ]
        self.streams = [
            MeterStream(PlausibleMeter(meter, context.clock), context.clock, i)
            for i, meter in enumerate(self._inventory.meters)
        ]
        self.sources: dict[str, DomainSource] = {
            source.domain.name: source for source in domain_sources(self.streams, devices)
        }
        used = {id(c.feed) for c in self.sources.values()}
        used |= {id(c.shape_feed) for c in self.sources.values() if c.shape_feed is not None}
        self._used_streams = [stream for stream in self.streams if id(stream) in used]
        counters = [d for d in self.domains.values() if d.kind is DomainKind.COUNTER]
        periods_s = [domain.update_period_s for domain in counters]
        self.lag_s = min(LONGEST_LAG_S, max([SHORTEST_LAG_S, *periods_s]) + SHORTEST_LAG_S / 2)
        self._anchors_s: dict[str, float] = {}
        self._counted_j: dict[str, float] = {}
        """Joules taken from each curve so far, so that none is taken twice."""
        self.unseen_s = (0.0, 0.0)
        """The time before this agent in which no other ran."""
        self.reasons: dict[str, str] = {}
        """Why a domain cannot be read now."""
        self.on_gap: GapListener | None = None
        for stream in self.streams:
            stream.on_gap = self._note_gap

    @property
    def domains(self) -> dict[str, Domain]:
        """Return the domains that can be read here."""
        return {name: source.domain for name, source in self.sources.items()}

    def read(self) -> None:
        for stream in self._used_streams:
            stream.read()

    def read_signals(self) -> None:
        for stream in self.streams:
            stream.read_signals()

    def processes(self) -> dict[str, Sequence[DeviceProcess]]:
        """Read the processes on each GPU since the last call; one that does not say is left out."""
        found: dict[str, Sequence[DeviceProcess]] = {}
        for meter in self._inventory.meters:
            for name, listed in meter.read_processes().items():
                if not isinstance(listed, Gap):
                    found[name] = listed
        return found

    def signals(self) -> dict[str, float]:
        return {name: v for stream in self.streams for name, v in stream.signal_values.items()}

    def signal_units(self) -> dict[str, str]:
        return {signal.name: signal.unit for stream in self.streams for signal in stream.signals}

    def power_w(self) -> dict[str, float]:
        powers = ((name, source.power_w()) for name, source in self.sources.items())
        return {name: power for name, power in powers if power is not None}

    def start(self, now_s: float) -> None:
        """Start curves that gave out no energy yet."""
        for name in self.sources:
            self._anchors_s.setdefault(name, now_s)
            self._counted_j.setdefault(name, 0.0)

    def handed_out_s(self) -> dict[str, float]:
        return dict(self._anchors_s)

    def readable(self, name: str, until_s: float) -> bool:
        """Return True when a domain's energy up to an instant is known."""
        curve = self.sources[name].track
        if curve.lost is not None:
            return False
        last_s = curve.last_read_s
        silent = curve.last_gap is not None and until_s - last_s > BRIDGE_S
        return not (math.isnan(last_s) or silent)

    def take(self, name: str, until_s: float) -> float:
        """Return the joules of a domain since the last call; later calls correct excess."""
        span = self._between(name, self._anchors_s[name], until_s)
        if span is None:
            return 0.0
        more_j = max(0.0, span.energy_j - self._counted_j[name])
        self._counted_j[name] += more_j
        return more_j

    def hole_s(self, name: str, begin_s: float, end_s: float) -> float:
        """Return the seconds for which the energy of the domain is unknown."""
        span = self._between(name, begin_s, end_s)
        return 0.0 if span is None else (1 - span.covered) * (end_s - begin_s)

    def unseen_wraps(self, name: str, begin_s: float, end_s: float) -> str | None:
        """Return why a counter does not show the energy of an interval; None when it does."""
        curve = _counter(self.sources[name])
        return None if curve is None else unseen_wraps_reason(curve, begin_s, end_s)

    def sigma_j(self, name: str, begin_s: float, end_s: float) -> float:
        """Return the sensor's uncertainty of an interval, as far as this process has read it."""
        span = self._between(name, max(begin_s, self._anchors_s[name]), end_s)
        return 0.0 if span is None else span.sigma_j

    def unseen_j(self, name: str, edge_s: float) -> float:
        """Return the error bound of energy that was split at an instant without a reading."""
        begin_s, end_s = self.unseen_s
        span = self._between(name, begin_s, end_s) if begin_s < edge_s < end_s else None
        share = (edge_s - begin_s) / (end_s - begin_s) if span is not None else 0.0
        return 0.0 if span is None else span.energy_j * max(share, 1 - share)

    def keep_memory_small(self, now_s: float) -> None:
        for stream in self.streams:
            stream.drained()
            stream.thin_before(now_s)

    def close(self) -> None:
        self._inventory.close()

    # -- across restarts -------------------------------------------------------------------

    def to_state(self, until_s: float) -> dict[str, Any]:
        """Return the counters at the last attribution."""
        kept = {}
        for name, source in self.sources.items():
            curve = _counter(source)
            if curve is None or source.feed.meter.name in OWN_ZERO or not curve.times_s:
                continue
            counted_j = self._counted_j[name]
            span = self._between(name, self._anchors_s[name], curve.times_s[-1])
            kept[name] = {
                "meter": source.feed.meter.name,
                "raw_j": curve.last_raw_j,
                "read_s": curve.last_read_s,
                "pending_j": 0.0 if span is None else max(0.0, span.energy_j - counted_j),
                "until_s": until_s,
                "power_w": curve.power_w(MODEL_S),
            }
        return kept

    def resume(self, state: Mapping[str, Any]) -> list[str]:
        """Continue where another process stopped; return the domains that could.

        Called after the first reading of all sensors. A counter that fell, or that gained more
        than its device can draw, starts again. One that may have wrapped more than once goes on
        with the power of before, and says so (`unseen_wraps`).
        """
        resumed = []
        for name, kept in state.items():
            source = self.sources.get(name)
            curve = None if source is None else _counter(source)
            if source is None or curve is None or source.feed.meter.name != kept["meter"]:
                continue
            if not continues_counter(source.domain, kept, curve.last_raw_j, curve.last_read_s):
                continue
            self._seed(source.feed, source.index, curve, kept)
            resumed.append(name)
            self._anchors_s[name] = kept["until_s"]
            self._counted_j[name] = 0.0
            self.unseen_s = (kept["until_s"], self._clock.now_s())
        return resumed

    @staticmethod
    def _seed(stream: MeterStream, i: int, curve: CounterCurve, kept: Mapping[str, Any]) -> None:
        """Replace a curve by one that begins with the readings of the last agent."""
        domain = stream.domains[i]
        before_j = kept["raw_j"] - kept["pending_j"]
        if before_j < 0 and domain.wrap_j is not None:
            before_j += domain.wrap_j
        fresh = CounterCurve(domain, curve.ticks)
        fresh.model_w = kept.get("power_w")
        # A curve takes a reading for half a period old; this one is exact at `until_s`.
        first_s = kept["until_s"] + domain.update_period_s / 2
        fresh.feed(first_s, before_j)
        if kept["read_s"] > first_s:
            fresh.feed(kept["read_s"], kept["raw_j"])
        fresh.feed(curve.last_read_s, curve.last_raw_j)
        with stream.lock:
            stream.tracks[i] = fresh

    def _between(self, name: str, begin_s: float, end_s: float) -> EnergySpan | None:
        return self.sources[name].between(begin_s, end_s) if end_s > begin_s else None

    def _note_gap(self, time_s: float, domain: str, gap: Gap) -> None:
        self.reasons[domain] = gap.reason
        if self.on_gap is not None:
            self.on_gap(time_s, domain, gap)


def _counter(source: DomainSource) -> CounterCurve | None:
    curve = source.track
    if isinstance(curve, FusedCurve):
        return curve.counter
    return curve if isinstance(curve, CounterCurve) else None
