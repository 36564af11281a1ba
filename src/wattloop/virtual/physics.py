"""Power, clock and speed of a GPU under a power cap.

P(f) = idle + C(u_c) f V(f)^2 + M u_m          static, dynamic (CMOS switching) and memory power
V(f) = V_min up to a knee, then linear to V_max  voltage cannot fall below what transistors need
t(f) = max(flops / (F f/f_max), bytes / B)     roofline: memory-bound work does not feel the clock

A capped card runs at the highest clock whose power fits, as GPU Boost does.
"""

import math
from dataclasses import dataclass

__all__ = ["IDLE", "Activity", "CardModel", "OperatingPoint", "Work"]


@dataclass(frozen=True, slots=True)
class Work:
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
    """

    compute: float = 0.0
    memory: float = 0.0
    busy: float = 0.0


IDLE = Activity()


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """Where a card settles: `slowdown` is the time of work relative to the highest clock."""

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
        knee_mhz: below this clock the voltage no longer falls.
        ramp_s: time constant with which power follows the load.
        sensor_window_s: the part of each `sensor_period_s` at which the sensor looks.
        source: where the numbers come from.
    """

    name: str
    flops_per_s: float
    bytes_per_s: float
    memory_b: float
    idle_w: float
    compute_w: float
    memory_w: float
    default_limit_w: float
    min_limit_w: float
    min_clock_mhz: float
    max_clock_mhz: float
    memory_clock_mhz: float
    knee_mhz: float
    min_volt: float
    max_volt: float
    ramp_s: float = 0.02
    sensor_period_s: float = 0.1
    sensor_window_s: float = 0.025
    noise_w: float = 1.0
    warmth_k_per_w: float = 0.06
    source: str = ""

    @property
    def max_limit_w(self) -> float:
        """Data-centre cards cannot be set above their default limit."""
        return self.default_limit_w

    def activity(self, work: Work) -> Activity:
        """The share of each unit that `work` needs."""
        longest_s = self.shortest_s(work)
        if longest_s <= 0:
            return IDLE
        compute_s, memory_s = work.flops / self.flops_per_s, work.bytes / self.bytes_per_s
        return Activity(compute_s / longest_s, memory_s / longest_s, 1.0)

    def shortest_s(self, work: Work) -> float:
        """Time at the highest clock."""
        return max(work.flops / self.flops_per_s, work.bytes / self.bytes_per_s)

    def volt(self, clock_mhz: float) -> float:
        """Supply voltage at a clock."""
        span = (clock_mhz - self.knee_mhz) / (self.max_clock_mhz - self.knee_mhz)
        return self.min_volt + (self.max_volt - self.min_volt) * min(1.0, max(0.0, span))

    def at_clock(self, activity: Activity, clock_mhz: float) -> OperatingPoint:
        """Power and speed at a given clock."""
        if activity.busy <= 0:
            return OperatingPoint(self.min_clock_mhz, self.idle_w, 1.0, 0.0, 0.0)
        speed = clock_mhz / self.max_clock_mhz
        slowdown = max(activity.compute / speed, activity.memory)
        compute = activity.busy * activity.compute / speed / slowdown
        memory = activity.busy * activity.memory / slowdown
        # C f V^2, normalised to the highest clock
        switching = speed * (self.volt(clock_mhz) / self.max_volt) ** 2
        power_w = self.idle_w + self.compute_w * compute * switching + self.memory_w * memory
        return OperatingPoint(clock_mhz, power_w, slowdown, compute, memory)

    def settle(self, activity: Activity, limit_w: float, max_clock_mhz: float) -> OperatingPoint:
        """The highest clock up to `max_clock_mhz` at which power stays within `limit_w`.

        At the lowest clock power may still exceed the limit: caps are not hard limits on real
        cards either.
        """
        best = self.at_clock(activity, max_clock_mhz)
        if best.power_w <= limit_w or activity.busy <= 0:
            return best
        low, high = self.min_clock_mhz, max_clock_mhz
        for _ in range(40):  # power grows with the clock, so halving finds the crossing
            middle = (low + high) / 2
            if self.at_clock(activity, middle).power_w <= limit_w:
                low = middle
            else:
                high = middle
        return self.at_clock(activity, low)

    def noise(self, gpu: int, tick: int) -> float:
        """Sensor noise in watts; the same tick of the same card always reads the same."""
        u = (_mixed(2 * tick + 1, gpu) + 1) / 2**64
        v = _mixed(2 * tick + 2, gpu) / 2**64
        return self.noise_w * math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * v)


def _mixed(value: int, stream: int) -> int:
    """A well-spread 64-bit number per (value, stream), by splitmix64."""
    mask = 2**64 - 1
    x = (value * 0x9E3779B97F4A7C15 + (stream + 1) * 0xD1B54A32D192ED03) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return x ^ (x >> 31)
