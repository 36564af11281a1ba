"""A virtual card: its physics, limits, work, faults, and the exact energy it used.

    P(f, g) = idle + C u_c f V(f)^2 + M u_m g        static, dynamic (CMOS switching), memory
    V(f)    = V_min up to a knee f_k, then V_min + (V_max - V_min) ((f - f_k) / (f_max - f_k))^e
    t(f, g) = max(a, b) + (1 - overlap) min(a, b),   a = flops / (F f), b = bytes / (B g)

f and g are the SM and memory clocks relative to their highest. With full overlap t is the
roofline: memory-bound work does not feel the SM clock. A program of many kernels, some bound by
arithmetic and some by memory, has none: its times add.

A capped card runs at the highest clock whose power fits, as GPU Boost does. Caps are not hard
limits: a card may settle `overshoot` above its cap, and no cap brings it below a lowest clock.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

from wattloop.core.clock import Clock, RealClock
from wattloop.core.errors import ConfigError, LeverError
from wattloop.virtual.timeline import (
    NO_OWNER,
    CardTimeline,
    MemoryTimeline,
    ProcessLoad,
    TimelineSegment,
    WorkOwner,
    segment_at,
)


@dataclass(frozen=True, slots=True)
class GpuWork:
    """A piece of work: floating-point operations, and bytes moved to and from memory."""

    flops: float = 0.0
    bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Activity:
    """What occupies a card.

    Attributes:
        compute: share of the time at the highest clock that the arithmetic units need, 0 to 1.
        memory: the same for memory; the larger of the two is 1 for a busy card.
        busy: share of the time in which there is work at all.
        overlap: part of the shorter of both that is hidden behind the longer, 0 to 1.
    """

    compute: float = 0.0
    memory: float = 0.0
    busy: float = 0.0
    overlap: float = 1.0

    def duration(self, speed: float = 1.0, memory_speed: float = 1.0) -> float:
        """Time at relative clocks, in units of the larger share at the highest ones."""
        arithmetic, traffic = self.compute / speed, self.memory / memory_speed
        hidden = (1 - self.overlap) * min(arithmetic, traffic)
        return max(arithmetic, traffic) + hidden


IDLE = Activity()


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """Where a card settles: `slowdown` is the time of work relative to the highest clocks."""

    clock_mhz: float
    power_w: float
    slowdown: float
    compute_utilisation: float
    memory_utilisation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CardModel:
    """Parameters of one card.

    Attributes:
        compute_w: dynamic power at the highest clock with all arithmetic units busy.
        memory_w: power of memory at full bandwidth.
        memory_idle_w: the part of `idle_w` that follows the memory clock.
        lower_memory_clocks_mhz: lower values that the memory clock can be locked to.
        knee_mhz: below this clock the voltage no longer falls.
        volt_exponent: how steeply the voltage rises above the knee, 1 for a straight line.
        overshoot: a capped card settles this fraction above its cap.
        cap_floor_mhz: no cap brings the clock below this, whatever the card then draws.
        ramp_s: time constant with which power follows the load.
        thermal_s: time constant with which temperature follows power.
        warmth_k_per_w: steady rise of temperature over `ambient_c` per watt.
        sensor_window_s: the part of each `sensor_period_s` at which the sensor looks.
    """

    name: str
    flops_per_s: float
    bytes_per_s: float
    memory_b: float
    idle_w: float
    compute_w: float
    memory_w: float
    memory_idle_w: float = 0.0
    default_limit_w: float
    min_limit_w: float
    min_clock_mhz: float
    max_clock_mhz: float
    clock_step_mhz: float = 15.0
    memory_clock_mhz: float
    lower_memory_clocks_mhz: tuple[float, ...] = ()
    knee_mhz: float
    min_volt: float
    max_volt: float
    volt_exponent: float = 1.0
    overshoot: float = 0.0
    cap_floor_mhz: float = 0.0
    ramp_s: float = 0.02
    thermal_s: float = 20.0
    ambient_c: float = 28.0
    warmth_k_per_w: float = 0.06
    sensor_period_s: float = 0.1
    sensor_window_s: float = 0.025
    noise_w: float = 1.0
    source: str = ""

    @property
    def max_limit_w(self) -> float:
        """Data-centre cards cannot be set above their default limit."""
        return self.default_limit_w

    @property
    def memory_clocks_mhz(self) -> tuple[float, ...]:
        return (self.memory_clock_mhz, *self.lower_memory_clocks_mhz)

    def activity(self, work: GpuWork) -> Activity:
        """The share of each unit that `work` needs."""
        longest_s = self.shortest_s(work)
        if longest_s <= 0:
            return IDLE
        compute_s, memory_s = work.flops / self.flops_per_s, work.bytes / self.bytes_per_s
        return Activity(compute_s / longest_s, memory_s / longest_s, 1.0)

    def shortest_s(self, work: GpuWork) -> float:
        return max(work.flops / self.flops_per_s, work.bytes / self.bytes_per_s)

    def volt(self, clock_mhz: float) -> float:
        span = (clock_mhz - self.knee_mhz) / (self.max_clock_mhz - self.knee_mhz)
        steepness = float(min(1.0, max(0.0, span)) ** self.volt_exponent)
        return self.min_volt + (self.max_volt - self.min_volt) * steepness

    def at_clock(
        self, activity: Activity, clock_mhz: float, memory_clock_mhz: float | None = None
    ) -> OperatingPoint:
        """Power and speed at given clocks; memory at its highest unless told."""
        memory_speed = (memory_clock_mhz or self.memory_clock_mhz) / self.memory_clock_mhz
        idle_w = self.idle_w - self.memory_idle_w * (1 - memory_speed)
        if activity.busy <= 0:
            return OperatingPoint(self.min_clock_mhz, idle_w, 1.0, 0.0, 0.0)
        speed = clock_mhz / self.max_clock_mhz
        duration = activity.duration(speed, memory_speed)
        compute = activity.busy * activity.compute / speed / duration
        memory = activity.busy * activity.memory / memory_speed / duration
        # C f V^2, normalised to the highest clock; memory pays per byte moved
        switching = speed * (self.volt(clock_mhz) / self.max_volt) ** 2
        dynamic_w = self.compute_w * compute * switching
        power_w = idle_w + dynamic_w + self.memory_w * memory * memory_speed
        return OperatingPoint(clock_mhz, power_w, duration / activity.duration(), compute, memory)

    def shared_at_clock(
        self,
        activities: Sequence[Activity],
        clock_mhz: float,
        memory_clock_mhz: float | None = None,
    ) -> OperatingPoint:
        """Power of processes that take turns on the card; `slowdown` is that of the first.

        Where they want more than all of the time, each gets a part in proportion.
        """
        if len(activities) == 1:
            return self.at_clock(activities[0], clock_mhz, memory_clock_mhz)
        idle_w = self.at_clock(IDLE, clock_mhz, memory_clock_mhz).power_w
        if not any(activity.busy > 0 for activity in activities):
            return self.at_clock(IDLE, clock_mhz, memory_clock_mhz)
        wanted = max(1.0, sum(activity.busy for activity in activities))
        points = [self.at_clock(each, clock_mhz, memory_clock_mhz) for each in activities]
        return OperatingPoint(
            clock_mhz,
            idle_w + sum(point.power_w - idle_w for point in points) / wanted,
            points[0].slowdown * wanted,
            sum(point.compute_utilisation for point in points) / wanted,
            sum(point.memory_utilisation for point in points) / wanted,
        )

    def settle(
        self,
        activity: Activity,
        limit_w: float,
        max_clock_mhz: float,
        memory_clock_mhz: float | None = None,
        others: Sequence[Activity] = (),
    ) -> OperatingPoint:
        """The highest clock up to `max_clock_mhz` at which power stays within the cap.

        At the lowest clock power may still exceed it: caps are not hard limits on real cards
        either. `others` are the other processes that take turns with this one.
        """
        ceiling_w = limit_w * (1 + self.overshoot)
        all_of_them = (activity, *others)
        best = self.shared_at_clock(all_of_them, max_clock_mhz, memory_clock_mhz)
        if best.power_w <= ceiling_w or not any(each.busy > 0 for each in all_of_them):
            return best
        low = min(max_clock_mhz, max(self.min_clock_mhz, self.cap_floor_mhz))
        high = max_clock_mhz
        for _ in range(24):  # power grows with the clock, so halving finds the crossing
            middle = (low + high) / 2
            if self.shared_at_clock(all_of_them, middle, memory_clock_mhz).power_w <= ceiling_w:
                low = middle
            else:
                high = middle
        return self.shared_at_clock(all_of_them, low, memory_clock_mhz)


def normal(stream: int, tick: int) -> float:
    """A number of the standard normal distribution per (stream, tick)."""
    u = (_mixed(2 * tick + 1, stream) + 1) / 2**64
    v = _mixed(2 * tick + 2, stream) / 2**64
    return math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * v)


def _mixed(value: int, stream: int) -> int:
    """A well-spread 64-bit number per (value, stream), by splitmix64."""
    mask = 2**64 - 1
    x = (value * 0x9E3779B97F4A7C15 + (stream + 1) * 0xD1B54A32D192ED03) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)


class Fault(IntEnum):
    """What is wrong with a card.

    `NO_PERMISSION` and `UNSUPPORTED` hold for reading and setting, `SET_FORBIDDEN` and
    `SET_UNSUPPORTED` for setting only; with `SET_IGNORED` a setting is accepted and has no effect.
    """

    NONE = 0
    LOST = 1
    NO_PERMISSION = 2
    UNSUPPORTED = 3
    UNKNOWN_ERROR = 4
    SET_FORBIDDEN = 5
    SET_UNSUPPORTED = 6
    SET_IGNORED = 7


def refusal_to_read(now: TimelineSegment) -> tuple[str, bool]:
    """Return why the card cannot be read ("" when it can) and whether the reason is permanent."""
    match Fault(int(now.fault)):
        case Fault.LOST:
            return "the virtual GPU has fallen off the bus", True
        case Fault.NO_PERMISSION:
            return "permission denied", True
        case Fault.UNSUPPORTED:
            return "the virtual GPU does not support the call", True
        case Fault.UNKNOWN_ERROR if random.random() < now.fault_probability:
            return "unknown error", False
    return "", False


def refusal_to_set(now: TimelineSegment) -> str:
    match Fault(int(now.fault)):
        case Fault.SET_FORBIDDEN:
            return "permission denied"
        case Fault.SET_UNSUPPORTED:
            return "the virtual GPU does not support the call"
    return refusal_to_read(now)[0]


SLICE_S = 0.1
"""Work looks at the card's limits this often, so that a cap set meanwhile takes effect."""
CONTEXT_B = 0.5e9
"""What a CUDA context occupies."""


class ProcessUse(NamedTuple):
    """Use of a card by one process: parts of the time, bytes held, and joules."""

    sm: float = 0.0
    memory: float = 0.0
    memory_b: float = 0.0
    energy_j: float = 0.0

    def plus(self, **more: float) -> ProcessUse:
        return self._replace(**{name: getattr(self, name) + more[name] for name in more})


NO_USE = ProcessUse()
SETTLED = 50
"""Time constants after which power has followed its load."""


def _start_s(segment: TimelineSegment) -> float:
    return segment.start_s


def _activity(load: ProcessLoad) -> Activity:
    return Activity(load.compute, load.memory, load.busy, load.overlap)


def _ramp_w(segment: TimelineSegment, start_w: float, target_w: float, at_s: float) -> float:
    decay = math.exp(-max(0.0, at_s - segment.start_s) / segment.ramp_s)
    return target_w + (start_w - target_w) * decay


def _ramp_j(
    segment: TimelineSegment, start_w: float, target_w: float, begin_s: float, end_s: float
) -> float:
    """Integrate `_ramp_w`; nothing where the times are not in order."""
    if end_s <= begin_s:
        return 0.0
    left, right = (
        math.exp(-(at_s - segment.start_s) / segment.ramp_s) for at_s in (begin_s, end_s)
    )
    return target_w * (end_s - begin_s) + (start_w - target_w) * segment.ramp_s * (left - right)


class VirtualGpu:
    """One card.

    Args:
        index: its number, which is also its stream of sensor noise.
        timeline: where its life is kept; private to this object unless given.
    """

    def __init__(
        self,
        index: int,
        model: CardModel,
        timeline: CardTimeline | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.index = index
        self.model = model
        self._timeline = timeline or MemoryTimeline()
        self._clock = clock or RealClock()
        self._first = self._untouched()

    def run(self, work: GpuWork) -> float:
        """Do `work`, waiting on the clock as long as the card takes; returns the seconds."""
        begin_s = self._clock.now_s()
        shortest_s = self.model.shortest_s(work)
        activity = self.model.activity(work)
        left = 1.0 if shortest_s > 0 else 0.0
        self.occupy(activity)
        try:
            while left > 1e-12:
                whole_s = shortest_s * self.settled(activity).slowdown
                slice_s = min(left * whole_s, max(SLICE_S, whole_s / 50))
                self._clock.sleep(slice_s)
                left -= slice_s / whole_s
        finally:
            self.load(0.0)
        return self._clock.now_s() - begin_s

    def load(
        self, busy: float, compute: float = 1.0, memory: float = 0.4, owner: WorkOwner = NO_OWNER
    ) -> None:
        """Keep the card busy for a share of the time, until told otherwise; 0 is idle.

        `compute` and `memory` say how the work splits, as in `Activity`. Each owner has its own
        load; without an owner, 0 ends those of all.
        """
        for name, value in (("load", busy), ("compute", compute), ("memory", memory)):
            if not 0 <= value <= 1:
                raise ConfigError(f"virtual GPU: {name} is {value:g}; use a number from 0 to 1")
        self.occupy(Activity(compute, memory, busy) if busy > 0 else IDLE, owner=owner)

    def occupy(
        self,
        activity: Activity,
        at_s: float | None = None,
        time_scale: float = 1.0,
        owner: WorkOwner = NO_OWNER,
        memory_b: float | None = None,
    ) -> None:
        """Work on `activity` from `at_s` (now) until told otherwise or until its owner ends.

        An owner holds `memory_b` of the card, that of a context unless given. An idle owner without
        memory has left.
        """
        held_b = memory_b if memory_b is not None else CONTEXT_B if owner != NO_OWNER else 0.0
        self._change(
            at_s,
            compute=activity.compute,
            memory=activity.memory,
            busy=activity.busy,
            overlap=activity.overlap,
            ramp_s=self.model.ramp_s / time_scale,
            thermal_s=self.model.thermal_s / time_scale,
            owner_pid=owner.pid,
            owner_began=owner.began,
            owner_memory_b=held_b,
        )

    def leave(self, owner: WorkOwner, at_s: float | None = None, time_scale: float = 1.0) -> None:
        """End the work of a process and release its memory; without an owner, of all."""
        self.occupy(IDLE, at_s, time_scale, owner, memory_b=0.0)

    def reap(self) -> None:
        """End the work of processes that were killed."""
        for load in self.now().loads:
            if load.owner.gone:
                self.leave(load.owner)

    @property
    def limits(self) -> tuple[float, float, float]:
        now = self.now()
        return now.limit_w, now.max_clock_mhz, now.memory_clock_mhz

    def settled(self, activity: Activity, owner: WorkOwner = NO_OWNER) -> OperatingPoint:
        """Where the card would settle with `activity` of `owner` under its present limits."""
        others = [_activity(load) for load in self.now().loads if load.owner != owner]
        return self.model.settle(activity, *self.limits, others)

    def set_power_cap(self, limit_w: float) -> None:
        """Limit power; only values the card allows."""
        self._check("a power cap", limit_w, self.model.min_limit_w, self.model.max_limit_w, "W")
        self._set(limit_w=limit_w)

    def set_clock(self, max_clock_mhz: float | None) -> None:
        """Lock the highest SM clock; None unlocks it."""
        low, high = self.model.min_clock_mhz, self.model.max_clock_mhz
        if max_clock_mhz is not None:
            self._check("a clock", max_clock_mhz, low, high, "MHz")
        locked = max_clock_mhz is not None
        self._set(
            max_clock_mhz=high if max_clock_mhz is None else max_clock_mhz, clock_locked=locked
        )

    def set_memory_clock(self, clock_mhz: float | None) -> None:
        """Lock the memory clock to one of the card's; None unlocks it."""
        known = self.model.memory_clocks_mhz
        if clock_mhz is not None and clock_mhz not in known:
            names = ", ".join(f"{clock:g}" for clock in known)
            raise ConfigError(
                f"{self.model.name} {self.index}: a memory clock of {clock_mhz:g} MHz is none of "
                f"its own ({names})"
            )
        locked = clock_mhz is not None
        self._set(memory_clock_mhz=clock_mhz or known[0], memory_clock_locked=locked)

    def set_memory_used(self, used_b: float) -> None:
        """Pretend that a program holds this many bytes."""
        self._change(memory_used_b=min(max(0.0, used_b), self.model.memory_b))

    def inject(self, fault: Fault, probability: float = 1.0) -> None:
        """Fail from now on; `Fault.NONE` heals. `probability` is for unknown errors."""
        self._change(fault=float(fault), fault_probability=probability)

    def reset_counter(self) -> None:
        """Set the energy counter to zero, as reloading a driver does."""
        self._change(counter_zero_j=self.energy_j(self._clock.now_s()))

    def now(self) -> TimelineSegment:
        segments = self._timeline.segments(self.index)
        return segments[-1] if segments else self._first

    def at(self, at_s: float) -> TimelineSegment:
        segments = self._timeline.segments(self.index)
        return segment_at(segments, at_s) if segments else self._first

    def power_w(self, at_s: float) -> float:
        return self.at(at_s).power_w(at_s)

    def temperature_c(self, at_s: float) -> float:
        model = self.model
        return model.ambient_c + model.warmth_k_per_w * self.heat_w(at_s)

    def heat_w(self, at_s: float) -> float:
        """Power as the heat sink feels it, behind by the thermal time constant."""
        return self.at(at_s).heat_w(at_s)

    def energy_j(self, at_s: float) -> float:
        return self.at(at_s).energy_until_j(at_s)

    def true_energy_j(self, begin_s: float, end_s: float) -> float:
        return self.energy_j(end_s) - self.energy_j(begin_s)

    def process_use(self, begin_s: float, end_s: float) -> dict[WorkOwner, ProcessUse]:
        """Mean use of the card by each process between two instants, and its true energy.

        Power follows a load exponentially, so the powers of processes add up to the card's. Idle
        power is divided evenly among the processes that hold memory; `NO_OWNER` has it while there
        is none.
        """
        use: dict[WorkOwner, ProcessUse] = {}
        known = self._timeline.segments(self.index)
        first = bisect_right(known, begin_s - SETTLED * self.model.ramp_s, key=_start_s) - 1
        segments = known[first:] if first >= 0 else [self._first, *known]
        dynamic_w, idle_w = self._powers_w(segments[0])
        for segment, after in zip(segments, [*segments[1:], None], strict=True):
            until_s = end_s if after is None else min(end_s, after.start_s)
            from_s = max(segment.start_s, begin_s)
            targets_w, idle_target_w = self._powers_w(segment)
            present = [load.owner for load in segment.loads] or [NO_OWNER]
            turns = max(1.0, sum(load.busy for load in segment.loads))
            for owner in {*targets_w, *dynamic_w}:
                start_w, target_w = dynamic_w.get(owner, 0.0), targets_w.get(owner, 0.0)
                own_j = _ramp_j(segment, start_w, target_w, from_s, until_s)
                use[owner] = use.get(owner, NO_USE).plus(energy_j=own_j)
                dynamic_w[owner] = _ramp_w(segment, start_w, target_w, until_s)
            idle_j = _ramp_j(segment, idle_w, idle_target_w, from_s, until_s)
            idle_w = _ramp_w(segment, idle_w, idle_target_w, until_s)
            for owner in present:
                use[owner] = use.get(owner, NO_USE).plus(energy_j=idle_j / len(present))
            share = max(0.0, until_s - from_s) / (end_s - begin_s)
            for load in segment.loads:
                point = self.model.at_clock(
                    _activity(load), segment.clock_mhz, segment.memory_clock_mhz
                )
                use[load.owner] = use[load.owner].plus(
                    sm=share * load.busy / turns,
                    memory=share * point.memory_utilisation / turns,
                    memory_b=share * load.memory_b,
                )
            if until_s >= end_s:
                break
        return use

    def _powers_w(self, segment: TimelineSegment) -> tuple[dict[WorkOwner, float], float]:
        """Dynamic power that each process of a segment settles at, and the card's idle power."""
        clocks = (segment.clock_mhz, segment.memory_clock_mhz)
        idle_w = self.model.at_clock(IDLE, *clocks).power_w
        turns = max(1.0, sum(load.busy for load in segment.loads))
        return {
            load.owner: (self.model.at_clock(_activity(load), *clocks).power_w - idle_w) / turns
            for load in segment.loads
        }, idle_w

    def changes_s(self, begin_s: float, end_s: float) -> list[float]:
        """When anything about the card changed between two moments of the clock."""
        segments = self._timeline.segments(self.index)
        return [each.start_s for each in segments if begin_s <= each.start_s <= end_s]

    def _check(self, what: str, value: float, low: float, high: float, unit: str) -> None:
        if not low <= value <= high:
            raise ConfigError(
                f"{self.model.name} {self.index}: {what} of {value:g} {unit} is outside "
                f"{low:g} to {high:g} {unit}"
            )

    def _set(self, **changes: float) -> None:
        refusal = refusal_to_set(self.now())
        if refusal:
            raise LeverError(f"{self.model.name} {self.index}: {refusal}")
        if self.now().fault != Fault.SET_IGNORED:
            self._change(**changes)

    def _change(self, at_s: float | None = None, **changes: float) -> None:
        with self._timeline.changing():
            now = self.now()
            since_s = max(now.start_s, self._clock.now_s() if at_s is None else at_s)
            segment = now.next_segment(since_s, **changes)
            loads = segment.next_loads
            activities = [_activity(load) for load in loads] or [IDLE]
            limits = (segment.limit_w, segment.max_clock_mhz, segment.memory_clock_mhz)
            point = self.model.settle(activities[0], *limits, activities[1:])
            settled = segment.next_segment(
                segment.start_s,
                target_w=point.power_w,
                clock_mhz=point.clock_mhz,
                compute_utilisation=point.compute_utilisation,
                memory_utilisation=point.memory_utilisation,
                utilisation=min(1.0, sum(each.busy for each in activities)),
            )
            self._timeline.append(self.index, replace(settled, loads=loads))

    def _untouched(self) -> TimelineSegment:
        """Idle since the beginning of the clock, the same for every process that looks."""
        model = self.model
        return TimelineSegment(
            start_s=0.0,
            energy_j=0.0,
            start_w=model.idle_w,
            target_w=model.idle_w,
            start_heat_w=model.idle_w,
            ramp_s=model.ramp_s,
            thermal_s=model.thermal_s,
            clock_mhz=model.min_clock_mhz,
            compute_utilisation=0.0,
            memory_utilisation=0.0,
            compute=0.0,
            memory=0.0,
            busy=0.0,
            limit_w=model.default_limit_w,
            max_clock_mhz=model.max_clock_mhz,
            memory_clock_mhz=model.memory_clock_mhz,
            memory_used_b=CONTEXT_B,
        )
