"""Time and power under a power cap, for a modelled step or from one measured point."""

from dataclasses import dataclass, fields
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import Gpu

HBM_SHARE = 0.15
"""Share of the factory limit, median of known GPUs: P100 0.13, V100 0.15 and 0.19, A100 0.14 and
0.20, H100 0.17, H200 0.11.
"""
GDDR_SHARE = 0.30
"""The same with GDDR, whose interface draws more and stays on: Quadro RTX 6000 0.23, P4 and L40S
0.29, A40 0.30, T4 and L4 0.39."""


class StaticPower(NamedTuple):
    """Watts, and their source."""

    watts: float
    source: str


def static_power(gpu: Gpu) -> StaticPower:
    """Return the published `idle_w`, else a share of the factory limit."""
    if gpu.idle_w is not None:
        return StaticPower(gpu.idle_w, gpu.source("idle_w"))
    share = GDDR_SHARE if gpu.memory_type.startswith("gddr") else HBM_SHARE
    memory = gpu.memory_type.upper() or "HBM"
    return StaticPower(
        share * gpu.tdp_w,
        f"assumed: {100 * share:.0f}% of {gpu.tdp_w:g} W, as known GPUs with {memory} draw",
    )


# A step under a power cap or a locked clock: the clock falls until mean power fits.
#
# With f the SM clock relative to the highest, a step of a GPU takes and draws
#
#     t(f) = max(c / f + m, h) + w
#     P(f) = [E_c V(f)^2 + E_m] / t(f) + s + k f V(f)^2
#     V(f) = v + (1 - v) max(0, (f - knee) / (1 - knee))
#
# c, m: seconds bound by arithmetic and by memory; h: the host needs at least that long to dispatch
# them; w: nothing runs. E_c, E_m: dynamic energy of arithmetic and of memory traffic; s, k: static
# power and power of the clock tree. Voltage is constant below a knee and rises above it (Guerreiro
# et al., HPCA 2018), relative to that at the highest clock. So arithmetic time grows at a lower
# clock and memory time does not. Below the knee a lower clock saves no energy per operation.
#
# All figures may be numpy arrays that broadcast: many placements, or phases of a step, at once.

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
        rise = np.clip((np.asarray(clock) - self.knee) / (1.0 - self.knee), 0.0, None)
        volt: Array = self.floor + (1.0 - self.floor) * rise
        return volt * volt


DEFAULT_VOLTAGE = VoltageCurve(floor=0.64, knee=0.5)
"""Suits the V100 and the A40 of the Zeus traces (docs/benchmarks/predict_caps.md)."""


@dataclass(frozen=True, slots=True)
class ClockedStep:
    """Components of one step at the highest clock; every field may be an array.

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
        busy_s = np.asarray(self.compute_s) / clock + self.memory_s
        time_s: Array = np.maximum(busy_s, self.host_s) + self.waiting_s
        return time_s

    def watts(self, clock: Numbers, voltage: VoltageCurve = DEFAULT_VOLTAGE) -> Array:
        squared = voltage.squared(clock)
        dynamic_j = np.asarray(self.compute_j) * squared + self.memory_j
        time_s = np.maximum(self.seconds(clock), 1e-12)
        power_w: Array = dynamic_j / time_s + self.static_w + self.clocked_w * clock * squared
        return power_w


class CappedStep(NamedTuple):
    """Step under a power cap: clock relative to the highest, time of the step, mean power."""

    clock: Array
    step_s: Array
    power_w: Array


def capped_step(
    profile: ClockedStep,
    *,
    cap_w: Numbers | None = None,
    clock: Numbers = 1.0,
    lowest_clock: Numbers = LOWEST_CLOCK,
    voltage: VoltageCurve = DEFAULT_VOLTAGE,
) -> CappedStep:
    """Return the highest clock, at most `clock`, at which the step's mean power is within the cap.

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
            # Most placements of a sweep are not capped.
            few = _picked(profile, over, shape)
            point = _under_cap(few, cap[over], low, at[over], voltage)
            at[over], step_s[over], power_w[over] = point
    return CappedStep(at, step_s, power_w)


def _picked(profile: ClockedStep, mask: Any, shape: tuple[int, ...] | None = None) -> ClockedStep:
    """Return the elements of a mask or slice; numbers stay as they are."""

    def pick(values: Numbers) -> Numbers:
        if np.ndim(values) == 0:
            return values
        whole = np.asarray(values, dtype=np.float64)
        picked: Array = (whole if shape is None else np.broadcast_to(whole, shape))[mask]
        return picked

    return ClockedStep(*(pick(getattr(profile, part.name)) for part in fields(ClockedStep)))


def _under_cap(
    profile: ClockedStep, cap: Array, low: Array, high: Array, voltage: VoltageCurve
) -> CappedStep:
    """Return clock, time and power of flat elements, in chunks that fit the cache."""
    points = []
    for begin in range(0, len(high), CHUNK):
        part = slice(begin, begin + CHUNK)
        some = _picked(profile, part)
        clock = _crossing(some, cap[part], np.minimum(low, high)[part], high[part], voltage)
        points.append((clock, some.seconds(clock), some.watts(clock, voltage)))
    return CappedStep(*(np.concatenate(column) for column in zip(*points, strict=True)))


def _crossing(
    profile: ClockedStep, cap: Array, low: Array, high: Array, voltage: VoltageCurve
) -> Array:
    """Find the clock at which power meets the cap: bisection, then linear interpolation."""
    for _ in range(10):
        middle = 0.5 * (low + high)
        within = profile.watts(middle, voltage) <= cap
        low = np.where(within, middle, low)
        high = np.where(within, high, middle)
    at_low, at_high = profile.watts(low, voltage), profile.watts(high, voltage)
    part = np.clip((cap - at_low) / np.maximum(at_high - at_low, 1e-9), 0.0, 1.0)
    crossing: Array = low + part * (high - low)
    return crossing


# Cap curve from one measured point: time and power without a cap, and the GPU's figures.
#
# What a program's phases are is unknown, so a typical one is assumed and scaled until it draws the
# power that was measured:
#
# - of the time, a part w the GPU waits and draws static power. With x the dynamic power of the
#   point, relative to the room under its cap, w = 1 - min(1, x)^duty: programs that draw little
#   either wait or keep the GPU half busy, and most do some of both;
# - the rest is a spread of phases, some hotter than others. Each runs at the highest clock whose
#   power is within the cap (`capped`), which is why mean power stays below a high cap and meets a
#   low one. A part of each phase follows the clock;
# - some of the waiting is for a host that dispatches work: a slower GPU hides in it.

PHASES = 5
MATCHED = 1e-4
"""Relative tolerance of the matched power."""


class CurveConstants(NamedTuple):
    """Assumptions about GPUs and programs.

    Attributes:
        voltage: of the GPU over its clock.
        clock_share: part of a phase's time that follows the clock.
        memory_share: part of its dynamic energy that does not follow the voltage.
        spread: of the phases' power, as the standard deviation of its logarithm.
        duty: how much of low power is waiting, 0 (none) to 1 (all).
        hidden: part of the waiting in which a slower GPU hides.
    """

    voltage: VoltageCurve = DEFAULT_VOLTAGE
    clock_share: float = 0.5
    memory_share: float = 0.12
    spread: float = 0.2
    duty: float = 0.7
    hidden: float = 0.2


SHIPPED = CurveConstants()
"""Round values near the best for the V100 and A40 of the Zeus traces together. The two alone give
the same errors within a point (docs/benchmarks/predict_caps.md)."""


class CapCurve(NamedTuple):
    """Time and mean power, points in rows and caps in columns."""

    step_s: Array
    power_w: Array

    @property
    def energy_j(self) -> Array:
        """Return the energy of the GPU over the step (scope: gpu)."""
        return self.step_s * self.power_w


def cap_curve(
    step_s: npt.ArrayLike,
    power_w: npt.ArrayLike,
    caps_w: npt.ArrayLike,
    gpu: Gpu,
    *,
    at_cap_w: float | None = None,
    clock: float = 1.0,
    constants: CurveConstants = SHIPPED,
) -> CapCurve:
    """Predict time and power of the measured programs under each cap.

    Args:
        step_s: measured time of each program, of a step or of anything else.
        power_w: its measured mean power.
        caps_w: power limits to predict.
        gpu: where it was measured.
        at_cap_w: limit it was measured at; the factory's unless given.
        clock: SM clock to lock as well, relative to the highest.
        constants: of the typical program.

    Raises:
        ConfigError: a time, a power or a cap is not above 0, there are not as many times as
            powers, or the clock is not a share of the highest.
    """
    times, powers = (
        np.atleast_1d(np.asarray(step_s, float)),
        np.atleast_1d(np.asarray(power_w, float)),
    )
    caps = np.atleast_1d(np.asarray(caps_w, float))
    at_cap_w = gpu.tdp_w if at_cap_w is None else at_cap_w
    for name, values in (
        *(("step_s", times), ("power_w", powers), ("caps_w", caps)),
        ("at_cap_w", np.atleast_1d(at_cap_w)),
    ):
        if not np.all(np.isfinite(values) & (values > 0)):
            wrong = values[~(np.isfinite(values) & (values > 0))]
            raise ConfigError(f"{name} must be above 0, not {wrong}")
    if not 0 < clock <= 1:
        raise ConfigError(f"clock {clock:g} is relative to the highest: above 0, at most 1")
    if times.size != powers.size and 1 not in (times.size, powers.size):
        raise ConfigError(f"step_s has {times.size} points and power_w {powers.size}; give as many")
    program = _Program(powers, gpu, at_cap_w, constants)
    seconds, watts = program.under(caps, clock)
    return CapCurve(times[:, None] * seconds, watts)


class _Program:
    """Typical programs with the measured powers at one cap; they take 1 s there."""

    def __init__(
        self, power_w: Array, gpu: Gpu, at_cap_w: float, constants: CurveConstants
    ) -> None:
        self.constants = constants
        # Cooler or idle cards draw less than the published static power.
        self.static_w = np.minimum(static_power(gpu).watts, power_w)
        # Power above the nominal cap was the effective limit of the card.
        at_w = np.maximum(at_cap_w, power_w)
        room_w = np.maximum(at_w - self.static_w, 1.0)
        dynamic_w = np.maximum(power_w - self.static_w, 1e-3)
        self.busy = np.clip(dynamic_w / room_w, 1e-6, 1.0) ** constants.duty
        middles = (np.arange(PHASES) + 0.5) / PHASES
        hot = np.exp([constants.spread * NormalDist().inv_cdf(float(q)) for q in middles])
        self.phases = hot / hot.mean()
        self.demand_w, self.work = self._matched(dynamic_w, at_w, room_w)

    def under(self, caps: Array, clock: float) -> tuple[Array, Array]:
        busy_s, dynamic_j = self._run(self.demand_w, caps[None, :], clock)
        busy_s, dynamic_j = busy_s * self.work[:, None], dynamic_j * self.work[:, None]
        waiting = (1.0 - self.busy)[:, None]
        # A slower GPU hides in some of the waiting; a faster one, under a higher cap, waits as long
        # as before.
        hiding = np.maximum(busy_s + waiting * (1.0 - self.constants.hidden), 1.0)
        seconds = np.minimum(hiding, busy_s + waiting)
        return seconds, self.static_w[:, None] + dynamic_j / seconds

    def _run(self, demand_w: Array, caps: Array, clock: float = 1.0) -> tuple[Array, Array]:
        """Return time and dynamic energy of one second of work under caps (programs or 1, caps)."""
        constants = self.constants
        watts = demand_w[:, None, None] * self.phases / PHASES
        static_w = self.static_w[:, None, None]
        phases = ClockedStep(
            compute_s=constants.clock_share / PHASES,
            memory_s=(1.0 - constants.clock_share) / PHASES,
            static_w=static_w,
            compute_j=watts * (1.0 - constants.memory_share),
            memory_j=watts * constants.memory_share,
        )
        settled = capped_step(
            phases,
            cap_w=caps[:, :, None],
            clock=clock,
            lowest_clock=LOWEST_CLOCK,
            voltage=constants.voltage,
        )
        dynamic_j = settled.step_s * (settled.power_w - static_w)
        return settled.step_s.sum(axis=-1), dynamic_j.sum(axis=-1)

    def _matched(self, dynamic_w: Array, at_w: Array, room_w: Array) -> tuple[Array, Array]:
        """Return demand of the phases and amount of work that give the measured power and 1 s.

        Under a cap that all phases reach, any higher demand gives the same power: the least does.
        """
        cap = at_w[:, None]
        low, high = np.full_like(dynamic_w, 1e-3), 4.0 * room_w
        for _ in range(24):
            middle = 0.5 * (low + high)
            busy_s, dynamic_j = self._run(middle, cap)
            over = self.busy * dynamic_j[:, 0] / busy_s[:, 0] > dynamic_w * (1.0 - MATCHED)
            low, high = np.where(over, low, middle), np.where(over, middle, high)
        demand_w = 0.5 * (low + high)
        return demand_w, self.busy / self._run(demand_w, cap)[0][:, 0]
