"""Power, clock and speed of a GPU under a power cap.

    P(f, g) = idle + C u_c f V(f)^2 + M u_m g        static, dynamic (CMOS switching), memory
    V(f)    = V_min up to a knee f_k, then V_min + (V_max - V_min) ((f - f_k) / (f_max - f_k))^e
    t(f, g) = max(a, b) + (1 - overlap) min(a, b),   a = flops / (F f), b = bytes / (B g)

f and g are the SM and memory clocks relative to their highest. With full overlap t is the
roofline: memory-bound work does not feel the SM clock. A program of many kernels, some bound by
arithmetic and some by memory, has none: its times add.

A capped card runs at the highest clock whose power fits, as GPU Boost does. Caps are not hard
limits: a card may settle `overshoot` above its cap, and no cap brings it below a lowest clock.
"""

from dataclasses import dataclass


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

    def settle(
        self,
        activity: Activity,
        limit_w: float,
        max_clock_mhz: float,
        memory_clock_mhz: float | None = None,
    ) -> OperatingPoint:
        """The highest clock up to `max_clock_mhz` at which power stays within the cap.

        At the lowest clock power may still exceed it: caps are not hard limits on real cards
        either.
        """
        ceiling_w = limit_w * (1 + self.overshoot)
        best = self.at_clock(activity, max_clock_mhz, memory_clock_mhz)
        if best.power_w <= ceiling_w or activity.busy <= 0:
            return best
        low = min(max_clock_mhz, max(self.min_clock_mhz, self.cap_floor_mhz))
        high = max_clock_mhz
        for _ in range(24):  # power grows with the clock, so halving finds the crossing
            middle = (low + high) / 2
            if self.at_clock(activity, middle, memory_clock_mhz).power_w <= ceiling_w:
                low = middle
            else:
                high = middle
        return self.at_clock(activity, low, memory_clock_mhz)
