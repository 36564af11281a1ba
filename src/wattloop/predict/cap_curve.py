"""A whole cap curve from one measured point: time and power without a cap, and the GPU's figures.

What a program's phases are is unknown, so a typical one is assumed and scaled until it draws the
power that was measured:

- of the time, a part w the GPU waits and draws static power. With x the dynamic power of the
  point, relative to the room under its cap, w = 1 - min(1, x)^duty: programs that draw little
  either wait or keep the GPU half busy, and most do some of both;
- the rest is a spread of phases, some hotter than others. Each runs at the highest clock whose
  power is within the cap (`capped`), which is why mean power stays below a high cap and meets a
  low one. A part of each phase follows the clock;
- some of the waiting is for a host that dispatches work: a slower GPU hides in it.
"""

from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import Gpu
from wattloop.predict.capped import (
    DEFAULT_VOLTAGE,
    LOWEST_CLOCK,
    StepProfile,
    VoltageCurve,
    settle,
)
from wattloop.predict.static_power import static_power

__all__ = ["CapCurve", "CurveConstants", "cap_curve"]

Array = npt.NDArray[np.float64]

PHASES = 5
MATCHED = 1e-4
"""How near, as a part, the measured power is met."""


class CurveConstants(NamedTuple):
    """What is assumed of GPUs and programs alike.

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
        """Energy of the GPU over the step (scope: gpu)."""
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
    """What the measured programs would take and draw under each cap.

    Args:
        step_s: measured time of each program, of a step or of anything else.
        power_w: its measured mean power.
        caps_w: power limits to predict.
        gpu: where it was measured.
        at_cap_w: limit it was measured at; the factory's unless told.
        clock: SM clock to lock as well, relative to the highest.
        constants: of the typical program.

    Raises:
        ConfigError: a time, a power or a cap is not above 0, there are not as many times as
            powers, or the clock is no part of the highest.
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
    """Typical programs that draw the measured powers at one cap; they take 1 s there."""

    def __init__(
        self, power_w: Array, gpu: Gpu, at_cap_w: float, constants: CurveConstants
    ) -> None:
        self.constants = constants
        # Cooler cards than ours, and idle ones, draw less than the published static power.
        self.static_w = np.minimum(static_power(gpu).watts, power_w)
        # Where more than the cap was drawn, that was what held the card.
        at_w = np.maximum(at_cap_w, power_w)
        room_w = np.maximum(at_w - self.static_w, 1.0)
        dynamic_w = np.maximum(power_w - self.static_w, 1e-3)
        self.busy = np.clip(dynamic_w / room_w, 1e-6, 1.0) ** constants.duty
        middles = (np.arange(PHASES) + 0.5) / PHASES
        hot = np.exp([constants.spread * NormalDist().inv_cdf(float(q)) for q in middles])
        self.phases = hot / hot.mean()
        self.demand_w, self.work = self._matched(dynamic_w, at_w, room_w)

    def under(self, caps: Array, clock: float) -> tuple[Array, Array]:
        """Time and mean power under each cap."""
        busy_s, dynamic_j = self._run(self.demand_w, caps[None, :], clock)
        busy_s, dynamic_j = busy_s * self.work[:, None], dynamic_j * self.work[:, None]
        waiting = (1.0 - self.busy)[:, None]
        # A slower GPU hides in some of the waiting; a quicker one, under a higher cap than it was
        # measured at, waits as long as before.
        hiding = np.maximum(busy_s + waiting * (1.0 - self.constants.hidden), 1.0)
        seconds = np.minimum(hiding, busy_s + waiting)
        return seconds, self.static_w[:, None] + dynamic_j / seconds

    def _run(self, demand_w: Array, caps: Array, clock: float = 1.0) -> tuple[Array, Array]:
        """Time and dynamic energy of one second of work under caps (programs or 1, caps)."""
        constants = self.constants
        watts = demand_w[:, None, None] * self.phases / PHASES
        static_w = self.static_w[:, None, None]
        phases = StepProfile(
            compute_s=constants.clock_share / PHASES,
            memory_s=(1.0 - constants.clock_share) / PHASES,
            static_w=static_w,
            compute_j=watts * (1.0 - constants.memory_share),
            memory_j=watts * constants.memory_share,
        )
        settled = settle(
            phases,
            cap_w=caps[:, :, None],
            clock=clock,
            lowest_clock=LOWEST_CLOCK,
            voltage=constants.voltage,
        )
        dynamic_j = settled.step_s * (settled.power_w - static_w)
        return settled.step_s.sum(axis=-1), dynamic_j.sum(axis=-1)

    def _matched(self, dynamic_w: Array, at_w: Array, room_w: Array) -> tuple[Array, Array]:
        """Demand of the phases, and how much work, that give the measured power and 1 s.

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
