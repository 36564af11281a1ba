"""Surrogate model of cap curves: many physically possible curves, and their posterior."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# The prior. A workload is a few kinds of phases of the card, and time in which it waits for the
# host. At the relative clock f, phase i takes the time t_i and draws the power p_i, in units of the
# highest clock:
#
#     t_i(f) = (1 - m_i) + m_i / f                             a part m_i of it follows the clock
#     p_i(f) = s + d_i [(1 - q) V(f)^2 + q] / t_i(f)           static; arithmetic, C V^2 f; memory
#     V(f)   = v + (1 - v) max(0, (f - knee) / (1 - knee))     voltage cannot fall below a floor
#
# Under a cap c each phase runs at the highest clock with p_i(f) <= r c, but not below the lowest
# clock: there the card draws more than its cap. Average power of the workload at a cap is the
# energy of all phases over their time. Every parameter is drawn from a wide range; none was fitted
# to measured curves (ADR 0018).

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


# The posterior. Each curve of the physical family, moved to the power that was read at the highest
# cap, is the mean of a Gaussian process that allows for what the family leaves out: a smooth
# deviation and a small one of each cap for itself. Readings weigh the curves, and pull each of them
# to where they lie; the posterior holds each as often as it weighs. The scale of time is free.
# Everything is in logarithms, so that noise is relative.

SMOOTH, OWN, LENGTH = 0.01, 0.01, 0.25
"""Deviation of real curves from the family: smooth part, part of each cap (both relative), and
over how much of a cap's logarithm the smooth part extends."""
STATIC_SHARE = (0.06, 0.36)
STATIC_DOUBT = 3.0
"""Static power is usually this share of the highest cap; curves with another weigh exp(-3)."""
FEWEST = 5.0
"""Readings that fit fewer curves than this (effective number) count as noisier than they claim."""
WIDENINGS = 6
KEPT = 1_200
"""Curves of a belief."""


class CapReading(NamedTuple):
    """Reading at one cap: index of the cap, logs of time and power, relative noise.

    `power_noise` is that of the power where it is another than that of the time.
    """

    cap: int
    log_time: float
    log_power: float
    noise: float
    power_noise: float | None = None

    @property
    def of_power(self) -> float:
        return self.noise if self.power_noise is None else self.power_noise


@dataclass(frozen=True, slots=True)
class CurveSurrogate:
    """Curves over the caps, each as likely as any other.

    Attributes:
        log_time, log_power: expected curve of each (rows) at each cap.
        sampled_time, sampled_power: one possible true curve for each.
    """

    log_time: Array
    log_power: Array
    sampled_time: Array
    sampled_power: Array


def fit_curves(
    family: CurveFamily, caps_w: Array, readings: Sequence[CapReading], seed: int = 0
) -> CurveSurrogate:
    """The belief after `readings`, of which there is at least one."""
    merged = _merged(readings)
    prior = _anchored(family, tuple(caps_w), max(merged), seed)
    return _posterior(prior, np.log(caps_w), merged, seed)


def fit_clock_curves(clocks: Array, readings: Sequence[CapReading]) -> CurveSurrogate:
    """Return the belief over SM clocks, relative to the highest; the last is the reference.

    Times and powers are logarithms of those at the reference.
    """
    return _posterior(_clock_prior(tuple(clocks)), np.log(clocks), _merged(readings), seed=0)


def _posterior(
    prior: "_Prior", places: Array, merged: Sequence[CapReading], seed: int
) -> CurveSurrogate:
    draw = np.random.default_rng(seed)
    distance = (places[:, None] - places[None, :]) / LENGTH
    deviation = SMOOTH**2 * np.exp(-0.5 * distance**2) + OWN**2 * np.eye(len(places))
    for _ in range(WIDENINGS):
        time = _Process(deviation, merged, [(r.log_time, r.noise) for r in merged], free_scale=True)
        power = _Process(
            deviation, merged, [(r.log_power, r.of_power) for r in merged], free_scale=False
        )
        log_weights = (
            prior.log_weights
            + time.log_likelihood(prior.log_time)
            + power.log_likelihood(prior.log_power)
        )
        weights = np.exp(log_weights - log_weights.max())
        weights /= weights.sum()
        if 1 / (weights**2).sum() >= FEWEST:
            break
        deviation = 2 * deviation
    # Every curve as often as its weight says, to within one.
    steps = (np.arange(KEPT) + 0.5) / KEPT
    kept = np.minimum(np.searchsorted(np.cumsum(weights), steps), len(weights) - 1)
    kept = draw.permutation(kept)
    log_time, log_power = time.mean(prior.log_time[kept]), power.mean(prior.log_power[kept])
    return CurveSurrogate(
        log_time=log_time,
        log_power=log_power,
        sampled_time=log_time + draw.standard_normal(log_time.shape) @ time.spread().T,
        sampled_power=log_power + draw.standard_normal(log_power.shape) @ power.spread().T,
    )


class _Prior(NamedTuple):
    log_time: Array
    log_power: Array
    log_weights: Array


def _merged(readings: Sequence[CapReading]) -> list[CapReading]:
    """Readings of the same cap as one, each weighed by its precision."""
    merged = []
    for cap in sorted({reading.cap for reading in readings}):
        own = [reading for reading in readings if reading.cap == cap]
        weights = np.array([1 / max(r.noise, 1e-4) ** 2 for r in own])
        time = float(weights @ [r.log_time for r in own] / weights.sum())
        noise = float(weights.sum() ** -0.5)
        weights = np.array([1 / max(r.of_power, 1e-4) ** 2 for r in own])
        power = float(weights @ [r.log_power for r in own] / weights.sum())
        merged.append(CapReading(cap, time, power, noise, float(weights.sum() ** -0.5)))
    return merged


@lru_cache(maxsize=8)
def _anchored(
    family: CurveFamily, caps: tuple[float, ...], anchor: CapReading, seed: int
) -> _Prior:
    """The family in watts: each curve has, within its noise, the power of the anchor's reading."""
    draw, caps_w = np.random.default_rng(seed + 1), np.array(caps)
    logs, rows = family.log_caps, np.arange(len(family.static))
    step = logs[1] - logs[0]
    off = draw.standard_normal(len(rows))
    doubt = np.sqrt(anchor.noise**2 + SMOOTH**2 + OWN**2)
    wanted = anchor.log_power - np.log(caps_w[anchor.cap]) + doubt * off
    # Power over cap falls with the cap, so it says where on its curve the workload is.
    ratio = family.log_power - logs
    # Beyond the table a cap does nothing any more, so the ratio falls as the cap grows.
    beyond = np.maximum(ratio[:, -1] - wanted, 0.0)
    wanted = np.clip(wanted, ratio[:, -1] + 1e-9, ratio[:, 1] - 1e-6)
    left = np.clip((ratio > wanted[:, None]).sum(axis=1) - 1, 0, len(logs) - 2)
    low, high = ratio[rows, left], ratio[rows, left + 1]
    place = logs[left] + step * np.clip((low - wanted) / (low - high + 1e-12), 0.0, 1.0)
    unit = np.log(caps_w[anchor.cap]) - place - beyond
    """Log of the watts that are 1 in the table."""
    columns = np.clip((np.log(caps_w) - unit[:, None] - logs[0]) / step, 0, len(logs) - 1.001)
    whole = columns.astype(np.intp)
    part = columns - whole

    def at_caps(table: Array) -> Array:
        below, above = (np.take_along_axis(table, whole + k, axis=1) for k in (0, 1))
        between: Array = below * (1 - part) + above * part
        return between

    static = family.static * np.exp(unit) / caps_w[-1]
    usual = (static > STATIC_SHARE[0]) & (static < STATIC_SHARE[1])
    # The anchor's reading chose the place, so its likelihood must not count twice.
    log_weights = np.where(usual, 0.0, -STATIC_DOUBT) + 0.5 * off**2
    return _Prior(at_caps(family.log_time), at_caps(family.log_power) + unit[:, None], log_weights)


@lru_cache(maxsize=4)
def _clock_prior(clocks: tuple[float, ...], count: int = 3_000, seed: int = 2) -> _Prior:
    """The same physics at locked clocks, next to the reference: the highest, or a capped one."""
    draw = np.random.default_rng(seed)

    def between(low: float, high: float) -> Array:
        return draw.uniform(low, high, count)

    static = between(0.1, 0.6)
    # Under its own power limit the card may run below its highest clock at the reference.
    reference = np.where(draw.random(count) < 0.5, 1.0, between(0.6, 1.0))
    waiting = np.where(draw.random(count) < 0.5, 0.0, between(0.0, 0.8))
    share = np.where(draw.random(count) < 0.4, 1.0, between(0.0, 1.0))
    card = _Card(static, between(0.65, 0.95), between(0.5, 0.97), static, between(0.0, 0.4))
    locked = np.minimum(np.array(clocks)[None, :], reference[:, None])
    speed = locked / reference[:, None]
    # Memory-bound kernels hide a lower clock up to a point: their time is the roofline's.
    hidden = np.where(draw.random(count) < 0.3, between(0.3, 1.0), 1.0)[:, None]
    busy_time = (1 - share[:, None]) + share[:, None] * np.maximum(hidden / speed, 1.0)
    busy = (1 - waiting)[:, None]
    time = waiting[:, None] + busy * busy_time
    work = card._work(locked) / card._work(reference[:, None])
    energy = static[:, None] * time + busy * (1 - static)[:, None] * work
    log_time, log_power = np.log(time), np.log(energy / time)
    return _Prior(log_time, log_power - log_power[:, -1:], np.zeros(count))


class _Process:
    """Gaussian process regression on many possible means, which share one gain."""

    def __init__(
        self,
        deviation: Array,
        readings: Sequence[CapReading],
        values: Sequence[tuple[float, float]],
        *,
        free_scale: bool,
    ) -> None:
        self._at = [reading.cap for reading in readings]
        self._values = np.array([value for value, _ in values])
        noise = np.diag([max(own, 1e-4) ** 2 for _, own in values])
        self._precision = np.linalg.inv(deviation[np.ix_(self._at, self._at)] + noise)
        self._gain = deviation[:, self._at] @ self._precision
        self._left_over = deviation - self._gain @ deviation[self._at, :]
        self._free_scale = free_scale

    def log_likelihood(self, means: Array) -> Array:
        residual = self._residual(means)[0]
        exponent: Array = -0.5 * np.sum((residual @ self._precision) * residual, axis=1)
        return exponent

    def mean(self, means: Array) -> Array:
        residual, scale = self._residual(means)
        pulled: Array = means + scale + residual @ self._gain.T
        return pulled

    def spread(self) -> Array:
        """Return a matrix that turns standard normal numbers into what remains unknown."""
        sizes, directions = np.linalg.eigh(self._left_over)
        spread: Array = directions * np.sqrt(np.maximum(sizes, 0.0))
        return spread

    def _residual(self, means: Array) -> tuple[Array, Array]:
        residual = self._values - means[:, self._at]
        scale = np.zeros((len(means), 1))
        if self._free_scale:
            total = self._precision.sum(axis=0)
            scale = (residual @ total / total.sum())[:, None]
        return residual - scale, scale
