"""A step under a power cap or a locked clock: the clock falls until mean power fits.

With f the SM clock relative to the highest, a step of a GPU takes and draws

    t(f) = max(c / f + m, h) + w
    P(f) = [E_c V(f)^2 + E_m] / t(f) + s + k f V(f)^2
    V(f) = v + (1 - v) max(0, (f - knee) / (1 - knee))

c, m: seconds bound by arithmetic and by memory; h: the host needs at least that long to dispatch
them; w: nothing runs. E_c, E_m: dynamic energy of arithmetic and of memory traffic; s, k: static
power and power of the clock tree. Voltage is constant below a knee and rises above it (Guerreiro
et al., HPCA 2018), relative to that at the highest clock. So arithmetic stretches with the clock
and memory does not, and below the knee a lower clock saves no energy per operation any more.

All figures may be numpy arrays that broadcast: many placements, or phases of a step, at once.
"""

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["DEFAULT_VOLTAGE", "LOWEST_CLOCK", "Settled", "StepProfile", "VoltageCurve", "settle"]

Array = npt.NDArray[np.float64]
Numbers = Array | float

LOWEST_CLOCK = 0.15
"""No cap brings the SM clock below this part of the highest one. NVIDIA's lowest clocks (135 to 345
MHz) are 0.1 to 0.17 of the highest."""


CHUNK = 8_192
"""Elements searched at once, so that their arrays stay in the cache of the processor."""


class VoltageCurve(NamedTuple):
    """Supply voltage relative to that at the highest clock.

    Attributes:
        floor: of the voltage, reached at and below the knee.
        knee: relative clock.
    """

    floor: float
    knee: float

    def squared(self, clock: Numbers) -> Array:
        """V^2 at a relative clock."""
        rise = np.clip((np.asarray(clock) - self.knee) / (1.0 - self.knee), 0.0, None)
        volt: Array = self.floor + (1.0 - self.floor) * rise
        return volt * volt


DEFAULT_VOLTAGE = VoltageCurve(floor=0.64, knee=0.5)
"""Suits the V100 and the A40 of the Zeus traces (docs/benchmarks/predict_caps.md)."""


@dataclass(frozen=True, slots=True)
class StepProfile:
    """What one step is made of at the highest clock; every field may be an array.

    Attributes:
        compute_s, memory_s: seconds of the GPU that follow the clock, and that do not.
        host_s: seconds the host needs to dispatch the step, which hide the GPU's or are hidden.
        waiting_s: seconds in which the GPU waits, on top (communication, data).
        static_w: idle and static power, whatever runs.
        clocked_w: power of clocks and control at the highest clock, whatever runs.
        compute_j, memory_j: dynamic energy of arithmetic and of memory traffic.
    """

    compute_s: Numbers
    memory_s: Numbers
    static_w: Numbers
    compute_j: Numbers
    memory_j: Numbers = 0.0
    host_s: Numbers = 0.0
    waiting_s: Numbers = 0.0
    clocked_w: Numbers = 0.0

    def seconds(self, clock: Numbers) -> Array:
        """Time of the step at a relative clock."""
        busy_s = np.asarray(self.compute_s) / clock + self.memory_s
        time_s: Array = np.maximum(busy_s, self.host_s) + self.waiting_s
        return time_s

    def watts(self, clock: Numbers, voltage: VoltageCurve = DEFAULT_VOLTAGE) -> Array:
        """Mean power of the step at a relative clock."""
        squared = voltage.squared(clock)
        dynamic_j = np.asarray(self.compute_j) * squared + self.memory_j
        time_s = np.maximum(self.seconds(clock), 1e-12)
        power_w: Array = dynamic_j / time_s + self.static_w + self.clocked_w * clock * squared
        return power_w


class Settled(NamedTuple):
    """Where the GPU ends up: clock relative to the highest, time of the step, mean power."""

    clock: Array
    step_s: Array
    power_w: Array


def settle(
    profile: StepProfile,
    *,
    cap_w: Numbers | None = None,
    clock: Numbers = 1.0,
    lowest_clock: Numbers = LOWEST_CLOCK,
    voltage: VoltageCurve = DEFAULT_VOLTAGE,
) -> Settled:
    """The highest clock, at most `clock`, at which the step's mean power stays within the cap.

    At the lowest clock power may still exceed the cap, as it does on real cards. Without a cap the
    clock is the one asked for.

    Args:
        profile: the step at the highest clock.
        cap_w: power limit; None for none.
        clock: a locked clock, relative to the highest.
        lowest_clock: where the GPU stops lowering it.
        voltage: of this GPU.
    """
    at: Array = np.asarray(np.maximum(clock, lowest_clock), dtype=np.float64)
    step_s, power_w = profile.seconds(at), profile.watts(at, voltage)
    shape = np.broadcast_shapes(
        step_s.shape, power_w.shape, np.shape(0.0 if cap_w is None else cap_w)
    )
    at, step_s, power_w = (np.array(np.broadcast_to(a, shape)) for a in (at, step_s, power_w))
    if cap_w is not None:
        cap = np.broadcast_to(np.asarray(cap_w, dtype=np.float64), shape)
        over = power_w > cap
        if over.any():
            low = np.broadcast_to(np.asarray(lowest_clock, dtype=np.float64), shape)[over]
            few = _taken(profile, over, shape)
            at[over], step_s[over], power_w[over] = few.under(cap[over], low, at[over], voltage)
    return Settled(at, step_s, power_w)


def _taken(profile: StepProfile, mask: npt.NDArray[np.bool_], shape: tuple[int, ...]) -> "_Capped":
    """The elements that the cap concerns: most placements of a sweep are not capped."""

    def of(values: Numbers) -> Numbers:
        if np.ndim(values) == 0:
            return values
        taken: Array = np.broadcast_to(np.asarray(values, dtype=np.float64), shape)[mask]
        return taken

    return _Capped(*(of(getattr(profile, part.name)) for part in fields(StepProfile)))


class _Capped(StepProfile):
    """Elements in a row whose power exceeds the cap."""

    def under(self, cap: Array, low: Array, high: Array, voltage: VoltageCurve) -> Settled:
        """Clock, time and power of each, a cache's worth at a time."""
        found = [np.empty_like(high) for _ in Settled._fields]
        for begin in range(0, len(high), CHUNK):
            part = slice(begin, begin + CHUNK)
            some = StepProfile(
                *(
                    values[part] if isinstance(values, np.ndarray) else values
                    for values in (getattr(self, field.name) for field in fields(StepProfile))
                )
            )
            clock = _crossing(
                some, cap[part], np.minimum(low[part], high[part]), high[part], voltage
            )
            settled = (clock, some.seconds(clock), some.watts(clock, voltage))
            for whole, piece in zip(found, settled, strict=True):
                whole[part] = piece
        return Settled(*found)


def _crossing(
    profile: StepProfile, cap: Array, low: Array, high: Array, voltage: VoltageCurve
) -> Array:
    """Where power, which grows with the clock, meets the cap: halving, then a straight line."""
    for _ in range(10):
        middle = 0.5 * (low + high)
        within = profile.watts(middle, voltage) <= cap
        low = np.where(within, middle, low)
        high = np.where(within, high, middle)
    at_low, at_high = profile.watts(low, voltage), profile.watts(high, voltage)
    part = np.clip((cap - at_low) / np.maximum(at_high - at_low, 1e-9), 0.0, 1.0)
    crossing: Array = low + part * (high - low)
    return crossing
