"""Prior over power-cap curves: many physically possible curves of time and power.

A workload is a few kinds of phases of the card, and time in which it waits for the host. At the
relative clock f, phase i takes the time t_i and draws the power p_i, in units of the highest clock:

    t_i(f) = (1 - m_i) + m_i / f                             a part m_i of it follows the clock
    p_i(f) = s + d_i [(1 - q) V(f)^2 + q] / t_i(f)           static; arithmetic, C V^2 f; memory
    V(f)   = v + (1 - v) max(0, (f - knee) / (1 - knee))     voltage cannot fall below a floor

Under a cap c each phase runs at the highest clock with p_i(f) <= r c, but not below the lowest
clock: there the card draws more than its cap. Average power of the workload at a cap is the energy
of all phases over their time. Every parameter is drawn from a wide range; none was fitted to
measured curves (ADR 0018).
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
CURVES = 12_000
PHASES = 3
CLOCKS = 64
LOG_CAPS = np.linspace(np.log(0.15), np.log(2.5), 56)
"""Caps of the table: log of the cap over the power of the main phase at the highest clock."""


@dataclass(frozen=True, slots=True, eq=False)
class CurveFamily:
    """Curves as tables over `log_caps`; powers in units of the main phase's full power.

    Attributes:
        log_time, log_power: one row per curve.
        static: static power of each, same unit.
    """

    log_caps: Array
    log_time: Array
    log_power: Array
    static: Array


@lru_cache(maxsize=4)
def physical_curves(count: int = CURVES, seed: int = 1) -> CurveFamily:
    """The same curves for the same arguments."""
    draw = np.random.default_rng(seed)

    def between(low: float, high: float) -> Array:
        return draw.uniform(low, high, count)

    static = between(0.1, 0.6)
    floor_v = between(0.65, 0.95)
    knee = between(0.6, 0.97)
    lowest_clock = between(0.08, 0.4)
    memory_share = between(0.0, 0.4)
    # Most cards hold their cap closely; one in five settles, or is read, well below or above it.
    loose = draw.random(count) < 0.2
    reached = np.where(loose, between(0.85, 1.25), draw.normal(0.985, 0.02, count))
    spread = between(0.0, 0.5)
    # Half of the workloads keep the card busy all the time; four in ten follow the clock fully.
    waiting = np.where(draw.random(count) < 0.5, 0.0, between(0.0, 0.6))
    clock_share = np.where(draw.random(count) < 0.4, 1.0, between(0.0, 1.0))
    weights = draw.dirichlet(np.full(PHASES, 1.5), count) * (1 - waiting)[:, None]

    card = _Card(static, floor_v, knee, lowest_clock, memory_share)
    caps = np.exp(LOG_CAPS)[None, :] * reached[:, None]
    time = np.repeat(waiting[:, None], len(LOG_CAPS), axis=1)
    energy = time * static[:, None]
    for phase in range(PHASES):
        share, dynamic = clock_share, 1 - static
        if phase:  # the others are like the main phase, more or less
            share = np.clip(clock_share + draw.normal(0.0, 0.15, count), 0.0, 1.0)
            dynamic = dynamic * np.exp(spread * draw.standard_normal(count))
        phase_time, phase_energy = card.under_caps(caps, share[:, None], dynamic[:, None])
        time += weights[:, phase, None] * phase_time
        energy += weights[:, phase, None] * phase_energy
    return CurveFamily(LOG_CAPS, np.log(time), np.log(energy / time), static)


class _Card:
    """One random card per row."""

    def __init__(
        self, static: Array, floor_v: Array, knee: Array, lowest_clock: Array, memory_share: Array
    ) -> None:
        self.static = static[:, None]
        self.floor_v = floor_v[:, None]
        self.knee = knee[:, None]
        self.memory_share = memory_share[:, None]
        steps = np.linspace(1.0, 0.0, CLOCKS)[None, :]
        self.clocks = lowest_clock[:, None] ** steps
        """From the lowest to 1."""

    def under_caps(self, caps: Array, share: Array, dynamic: Array) -> tuple[Array, Array]:
        clock = self._highest_within(caps, share, dynamic)
        time = (1 - share) + share / clock
        return time, self.static * time + dynamic * self._work(clock)

    def _work(self, clock: Array) -> Array:
        """Dynamic energy of the phase's work; 1 at the highest clock."""
        volt = np.clip((clock - self.knee) / (1 - self.knee), 0.0, None)
        volt = self.floor_v + (1 - self.floor_v) * volt
        return (1 - self.memory_share) * volt**2 + self.memory_share

    def _highest_within(self, caps: Array, share: Array, dynamic: Array) -> Array:
        """The clock at which power, which grows with it, meets the cap."""
        power = self.static + dynamic * self._work(self.clocks) / (1 - share + share / self.clocks)
        left = np.zeros(caps.shape, dtype=np.intp)
        step = CLOCKS // 2
        while step:  # by halving, in all rows at once
            left += step * (_taken(power, np.minimum(left + step, CLOCKS - 1)) <= caps)
            step //= 2
        left = np.minimum(left, CLOCKS - 2)
        low, high = _taken(power, left), _taken(power, left + 1)
        part = np.clip((caps - low) / np.maximum(high - low, 1e-12), 0.0, 1.0)
        return _taken(self.clocks, left) * (1 - part) + _taken(self.clocks, left + 1) * part


def _taken(table: Array, columns: npt.NDArray[np.intp]) -> Array:
    taken: Array = np.take_along_axis(table, columns, axis=1)
    return taken
