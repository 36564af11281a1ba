"""Trainings on virtual GPUs in virtual time, with known results of every setting.

A step is a mixture of kernels (roofline positions), of traffic between GPUs and of waiting for the
host. Its time and energy at a setting follow `wattloop.virtual.gpu`; the slowest GPU decides
and the others wait for it. On top come noise of every step, slow drift, batches of changing length,
changes of the work during the run, evaluations and pauses.
"""

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from wattloop.cap.evaluation import MeasuredCurve
from wattloop.cap.gpus import round_caps
from wattloop.cap.saver.proof import REFERENCE, Setting
from wattloop.virtual.cards import CARDS
from wattloop.virtual.gpu import Activity, CardModel

__all__ = [
    "Cost",
    "MeasuredWorkload",
    "Mixture",
    "Oracle",
    "Totals",
    "Training",
    "Workload",
    "random_workload",
]


class Cost(NamedTuple):
    """Time and energy of a step, of all GPUs."""

    time_s: float
    energy_j: float


@dataclass(frozen=True)
class Mixture:
    """Kinds of work of a step: (seconds at the highest clocks, activity); host time is idle."""

    parts: tuple[tuple[float, Activity], ...]
    host_s: float
    spread: tuple[float, ...]
    """Relative speed of each GPU."""

    def cost(self, card: CardModel, setting: Setting) -> Cost:
        cap_w = setting.cap_w if setting.cap_w is not None else card.default_limit_w
        clock = setting.clock_mhz if setting.clock_mhz is not None else card.max_clock_mhz
        busy: list[Cost] = []
        for factor in self.spread:
            # A worse chip draws more for the same work, so it runs slower under the same cap.
            own = replace(card, compute_w=card.compute_w * factor)
            time_s = energy_j = 0.0
            for seconds, activity in self.parts:
                point = own.settle(activity, cap_w, clock)
                time_s += seconds * point.slowdown
                energy_j += seconds * point.slowdown * point.power_w
            busy.append(Cost(time_s, energy_j))
        longest_s = max(one.time_s for one in busy)
        # Waiting for others is spinning in a collective: little more than idle.
        waiting_w = card.idle_w + 0.15 * (card.default_limit_w - card.idle_w)
        energy_j = sum(one.energy_j + (longest_s - one.time_s) * waiting_w for one in busy)
        energy_j += len(busy) * self.host_s * card.idle_w
        return Cost(longest_s + self.host_s, energy_j)


@dataclass(frozen=True)
class Workload:
    """A training: phases of work as (share of the steps, mixture), and its disturbances."""

    card: CardModel
    settings: tuple[Setting, ...]
    phases: tuple[tuple[float, Mixture], ...]
    noise: float = 0.02
    drift: float = 0.015
    drift_s: float = 180.0
    lengths: float = 0.0
    """Relative spread of the length of batches."""
    evaluate_every_s: float = 0.0
    evaluate_s: float = 0.0
    tells: bool = True
    """Whether evaluations are told to the saver; else they are gaps between steps."""
    seed: int = 0

    @property
    def devices(self) -> int:
        return len(self.phases[0][1].spread)

    @property
    def shares(self) -> list[float]:
        return [share for share, _ in self.phases]

    def costs(self) -> list[dict[Setting, Cost]]:
        """A step of every phase at every setting."""
        every = (REFERENCE, *self.settings)
        return [{s: mixture.cost(self.card, s) for s in every} for _, mixture in self.phases]

    @property
    def caps_w(self) -> list[float]:
        return [s.cap_w for s in self.settings if s.cap_w is not None]

    @property
    def clocks_mhz(self) -> list[float]:
        return [s.clock_mhz for s in self.settings if s.clock_mhz is not None]

    @property
    def found(self) -> Setting:
        return Setting(self.card.default_limit_w, self.card.max_clock_mhz)


@dataclass(frozen=True)
class MeasuredWorkload(Workload):
    """A curve that was measured: time and power of its work at every cap."""

    curve: MeasuredCurve | None = None
    step_s: float = 0.3

    @classmethod
    def of(cls, curve: MeasuredCurve, seed: int) -> "MeasuredWorkload":
        settings = tuple(Setting(cap, None) for cap in curve.caps_w[:-1])
        return cls(CARDS["v100"], settings, (), seed=seed, curve=curve)

    @property
    def devices(self) -> int:
        return 1

    @property
    def shares(self) -> list[float]:
        return [1.0]

    @property
    def found(self) -> Setting:
        assert self.curve is not None
        return Setting(self.curve.caps_w[-1], None)

    def costs(self) -> list[dict[Setting, Cost]]:
        assert self.curve is not None
        curve, scale = self.curve, self.step_s / self.curve.time_s[-1]
        rows = zip((*self.settings, REFERENCE), curve.time_s, curve.power_w, strict=True)
        return [{s: Cost(scale * t, scale * t * p) for s, t, p in rows}]


def random_workload(seed: int, *, clocks: bool = True) -> Workload:
    """Return a workload of its own for every seed."""
    draw = np.random.default_rng([20, seed])
    card = CARDS[str(draw.choice(["h200", "a100", "v100", "a40"]))]
    devices = int(draw.choice([1, 1, 2, 4, 8]))
    caps = round_caps(card.min_limit_w, card.default_limit_w)
    settings = [Setting(cap, None) for cap in caps if cap < card.default_limit_w]
    if clocks:
        for share in np.linspace(0.5, 0.95, 10):
            step = card.clock_step_mhz
            settings.append(Setting(None, step * round(share * card.max_clock_mhz / step)))
    spread = tuple(float(x) for x in np.exp(draw.normal(0.0, 0.03, devices)))
    step_s = float(np.exp(draw.uniform(math.log(0.08), math.log(2.0))))
    count = int(draw.choice([1, 1, 1, 2, 3]))
    shares = draw.dirichlet(np.full(count, 3.0))
    mixtures = [_mixture(draw, step_s, spread) for _ in range(count)]
    has_evaluation = bool(draw.random() < 0.5)
    return Workload(
        card,
        tuple(settings),
        tuple(zip((float(x) for x in shares), mixtures, strict=True)),
        lengths=float(draw.choice([0.0, 0.0, 0.0, 0.15])),
        evaluate_every_s=float(draw.uniform(120, 900)) if has_evaluation else 0.0,
        evaluate_s=float(draw.uniform(2, 40)),
        tells=bool(draw.random() < 0.5),
        seed=seed,
    )


def _mixture(draw: np.random.Generator, step_s: float, spread: tuple[float, ...]) -> Mixture:
    host = float(draw.uniform(0.1, 0.7)) if draw.random() < 0.3 else float(draw.uniform(0.0, 0.05))
    kinds = int(draw.integers(1, 4))
    weights = draw.dirichlet(np.full(kinds, 1.5)) * (1 - host) * step_s
    parts = []
    for seconds in weights:
        # Roofline position: log of the arithmetic over the memory time.
        position = float(draw.normal(0.2, 0.8))
        compute, memory = min(1.0, math.exp(position)), min(1.0, math.exp(-position))
        overlap = float(draw.choice([1.0, 0.5, 0.0]))
        parts.append((float(seconds), Activity(compute, memory, 1.0, overlap)))
    return Mixture(tuple(parts), host * step_s, spread)


class Oracle:
    """The best fixed setting of each phase within the limit, and the results of others."""

    def __init__(self, workload: Workload, limit: float | None) -> None:
        self.workload = workload
        self.costs = workload.costs()
        most = math.inf if limit is None else 1 + limit
        self.best = [
            min(
                (s for s in costs if costs[s].time_s <= most * costs[REFERENCE].time_s),
                key=lambda s, c=costs: c[s].energy_j,  # type: ignore[misc]
            )
            for costs in self.costs
        ]

    def saving(self, chosen: Sequence[Setting] | None = None) -> tuple[float, float]:
        """Return shares of energy saved and of time lost over the run."""
        chosen = self.best if chosen is None else chosen
        energy = time = energy_0 = time_0 = 0.0
        for share, costs, setting in zip(self.workload.shares, self.costs, chosen, strict=True):
            energy += share * costs[setting].energy_j
            time += share * costs[setting].time_s
            energy_0 += share * costs[REFERENCE].energy_j
            time_0 += share * costs[REFERENCE].time_s
        return 1 - energy / energy_0, time / time_0 - 1


@dataclass
class Totals:
    """Totals of a run, and of the same steps at the reference."""

    time_s: float = 0.0
    energy_j: float = 0.0
    reference_s: float = 0.0
    reference_j: float = 0.0
    other_s: float = 0.0
    other_reference_s: float = 0.0

    @property
    def saved(self) -> float:
        return 1 - self.energy_j / self.reference_j

    @property
    def slowdown(self) -> float:
        """Return the slowdown of the whole run, evaluations included."""
        return (self.time_s + self.other_s) / (self.reference_s + self.other_reference_s) - 1


@dataclass
class Training:
    """One run of a workload, whose setting is set while it runs."""

    workload: Workload
    length_s: float
    """At the reference."""
    setting: Setting = REFERENCE
    now_s: float = 0.0
    totals: Totals = field(default_factory=Totals)
    changes: int = 0
    spent: dict[tuple[int, Setting], float] = field(default_factory=dict)
    """Seconds at (phase, setting)."""
    _late: dict[Setting, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._times, self._joules = [0.0], [0.0]
        self.oracle = Oracle(self.workload, None)

    def set(self, setting: Setting | None) -> None:
        self.setting = setting or REFERENCE
        self.changes += 1

    def late_spent(self) -> dict[Setting, float]:
        """Return seconds at each setting in the second half of the work."""
        return dict(self._late)

    def energy(self, begin_s: float, end_s: float) -> tuple[float, float]:
        return self._joules_at(end_s) - self._joules_at(begin_s), 0.002

    def _joules_at(self, at_s: float) -> float:
        index = min(max(bisect.bisect_left(self._times, at_s), 1), len(self._times) - 1)
        t0, t1 = self._times[index - 1], self._times[index]
        share = (at_s - t0) / (t1 - t0) if t1 > t0 else 1.0
        j0, j1 = self._joules[index - 1], self._joules[index]
        return j0 + min(max(share, 0.0), 1.0) * (j1 - j0)

    def _advance(self, time_s: float, energy_j: float) -> None:
        self.now_s += time_s
        self._times.append(self.now_s)
        self._joules.append(self._joules[-1] + energy_j)

    def run(
        self,
        step: Callable[[float], None],
        interrupt: Callable[[float], None],
        tick: Callable[[float], None],
    ) -> Totals:
        """Train to the end; each function is called with the time."""
        w, draw = self.workload, np.random.default_rng([21, self.workload.seed])
        totals, costs = self.totals, self.oracle.costs
        next_evaluation_s = w.evaluate_every_s or math.inf
        drift_time = drift_power = 0.0
        phase, done_s = 0, 0.0
        ends = np.cumsum(w.shares) * self.length_s
        step(0.0)
        block: list[list[float]] = []
        while True:
            while phase < len(ends) and done_s >= ends[phase] - 1e-9:
                phase += 1
            if phase == len(ends):
                return totals
            if not block:
                block = draw.standard_normal((256, 5)).tolist()
            z = block.pop()
            base, now = costs[phase][REFERENCE], costs[phase][self.setting]
            keep = math.exp(-base.time_s / w.drift_s)
            push = w.drift * math.sqrt(1 - keep * keep)
            drift_time = keep * drift_time + push * z[0]
            drift_power = keep * drift_power + push * z[1]
            size = math.exp(w.lengths * z[4]) if w.lengths else 1.0
            slow = size * math.exp(w.noise * z[2] + drift_time)
            heavy = slow * math.exp(w.noise * z[3] + drift_power)
            self._advance(now.time_s * slow, now.energy_j * heavy)
            totals.time_s += now.time_s * slow
            totals.energy_j += now.energy_j * heavy
            totals.reference_s += base.time_s * slow
            totals.reference_j += base.energy_j * heavy
            key = phase, self.setting
            self.spent[key] = self.spent.get(key, 0.0) + now.time_s * slow
            if 2 * done_s >= self.length_s:
                self._late[self.setting] = self._late.get(self.setting, 0.0) + now.time_s * slow
            done_s += base.time_s
            step(self.now_s)
            tick(self.now_s)
            if now.time_s > 0.4:
                tick(self.now_s + 0.35)
            if self.now_s >= next_evaluation_s:
                next_evaluation_s = self.now_s + w.evaluate_every_s
                if w.tells:
                    interrupt(self.now_s)
                ratio = now.time_s / base.time_s
                self._advance(w.evaluate_s * ratio, w.evaluate_s * now.energy_j / base.time_s)
                totals.other_s += w.evaluate_s * ratio
                totals.other_reference_s += w.evaluate_s
                tick(self.now_s)
