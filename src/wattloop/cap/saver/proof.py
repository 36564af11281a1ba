"""Saving of a run at lower settings, estimated against slices at the reference: pairs, interval."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np

from wattloop.cap.curve_model import Array
from wattloop.cap.finder import GainInterval
from wattloop.cap.online import SliceCost
from wattloop.core.errors import ConfigError
from wattloop.core.records import from_plain, shape_fault, to_plain
from wattloop.core.results import student_95


class Setting(NamedTuple):
    """Power cap and SM clock of every GPU of a job; None leaves that lever as it was found.

    The reference, as found before the run, is `Setting(None, None)`.
    """

    cap_w: float | None = None
    clock_mhz: float | None = None

    def __str__(self) -> str:
        parts = [f"{self.cap_w:g} W"] if self.cap_w is not None else []
        parts += [f"{self.clock_mhz:g} MHz"] if self.clock_mhz is not None else []
        return " and ".join(parts) or "as found"


REFERENCE = Setting(None, None)


class SettingReading(NamedTuple):
    """Time and energy of a unit of progress at a setting, as logarithms of those at the reference.

    `noise` is the standard error of the time, `power_noise` that of the power.
    """

    setting: Setting
    log_time: float
    log_energy: float
    noise: float
    power_noise: float


@dataclass(frozen=True, slots=True)
class LearnedSetting:
    """What a run learned of its (program, GPU), to start the next one with.

    Attributes:
        setting: the one in use at the end; `REFERENCE` where none was better.
        reference_power_w: average power of all GPUs at the reference.
        reference_unit_s: time of a unit of progress at the reference.
        readings: every setting that was compared with the reference.
    """

    setting: Setting
    reference_power_w: float
    reference_unit_s: float
    readings: tuple[SettingReading, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return to_plain(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "LearnedSetting":
        """Convert back from `to_dict`. Raises ConfigError: it is not such a record."""
        fault = shape_fault(data, cls)
        if fault:
            raise ConfigError(f"learned setting: {fault}")
        return from_plain(cls, data)


class SavingState(StrEnum):
    """What became of a run's saver."""

    APPLIED = "applied"
    OBSERVED = "observed"
    """Nothing was set, because that was asked for or not permitted."""
    LEFT = "left alone"


class SettingPeriod(NamedTuple):
    """A setting that was chosen, and since when."""

    begin_s: float
    setting: Setting


@dataclass(frozen=True, slots=True)
class SavingResult:
    """Saving of a run, over its ordinary steps from the first to the last.

    Evaluation, checkpoints and pauses are left out of both sides: their energy is `other_j`, and
    no saving is claimed for it.

    Attributes:
        reason: why it was left alone or only observed; empty where settings were applied.
        periods: settings chosen over time; probes and reference slices are not among them.
        saved_pct, saved_j: of the energy that the same steps would have taken at the reference,
            with a 90% interval; negative where it took more. None where nothing was compared, or
            the slices differ too much to tell.
        slowdown_pct: time of the same steps, more than at the reference; 90% interval.
        expected_pct: saving within the limit that a model expects, where nothing was set.
        reference_slices, saving_slices: slices at the reference, and at any other setting.
        pairs: comparisons of the two that the intervals rest on.
        reference_s: time in reference slices after the first change.
        train_s, train_j: time and energy of the ordinary steps, as they were.
        other_s, other_j: time and energy of everything between them.
        unproven_j: part of `train_j` at settings that were never compared; counted as not saved.
        learned: for the next run of the same program on the same GPU.
    """

    state: SavingState
    reason: str = ""
    periods: tuple[SettingPeriod, ...] = ()
    saved_pct: GainInterval | None = None
    saved_j: GainInterval | None = None
    slowdown_pct: GainInterval | None = None
    expected_pct: GainInterval | None = None
    reference_slices: int = 0
    saving_slices: int = 0
    pairs: int = 0
    reference_s: float = 0.0
    train_s: float = 0.0
    train_j: float = 0.0
    other_s: float = 0.0
    other_j: float = 0.0
    unproven_j: float = 0.0
    learned: LearnedSetting | None = None

    def to_dict(self) -> dict[str, Any]:
        return to_plain(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "SavingResult":
        """Convert back from `to_dict`; unknown fields are ignored. Raises ConfigError."""
        fault = shape_fault(data, cls)
        if fault:
            raise ConfigError(f"saving of a run: {fault}")
        return from_plain(cls, data)


# The estimator. Slices follow one another. Where the setting changes, the logs of time and energy
# of a unit after the boundary are subtracted from those before it. Two neighbouring differences
# between the same settings (before and after a reference slice or a probe) are averaged, so that
# linear drift cancels: that is one pair. Pairs connect settings as edges of a graph; the level of
# each setting above the reference is their weighted least-squares solution, with its covariance.
# The variance of a pair is the claimed one, from the scatter of steps, times a factor phi that all
# pairs share and that is estimated from their residuals. The interval is that of Student's t.


def format_saving(result: SavingResult) -> str:
    """Return the line of a summary: what was saved, could have been, or why nothing was."""
    expected = ""
    if result.expected_pct is not None:
        expected = (
            f"about {format_percent(result.expected_pct)} of GPU energy could be saved (modelled)"
        )
    if result.saved_pct is not None and result.slowdown_pct is not None:
        time = format_percent(result.slowdown_pct, "+")
        text = f"saved {format_percent(result.saved_pct)} of GPU energy, {time} time"
        last = result.periods[-1].setting if result.periods else REFERENCE
        text += f", last at {last}" if last != REFERENCE else ""
        return text + (f"; then left alone: {result.reason}" if result.reason else "")
    if result.state is SavingState.APPLIED:
        unknown = "its slices differ too much" if result.pairs else "nothing was compared"
        return f"saving unknown: {result.reason or unknown}"
    if result.state is SavingState.OBSERVED:
        return f"{expected or 'nothing is known of its saving'}; nothing was set: {result.reason}"
    text = f"left alone: {result.reason}" if result.reason else "nothing was compared"
    return f"{text}; {expected}" if expected else text


def format_percent(interval: GainInterval, sign: str = "") -> str:
    value, low, high = (round(x, 1) + 0.0 for x in asdict(interval).values())  # no -0.0
    return f"{value:{sign}.1f}% ({low:.1f} to {high:.1f}%)"


class MeasuredSlice(NamedTuple):
    """Ordinary steps at one setting, and what lay between them.

    Attributes:
        regime: number of the workload; a change of work begins another.
        cost: of a unit of progress; None where too little was measured.
        measured_s: the time that `cost` was measured over.
    """

    regime: int
    setting: Setting
    begin_s: float
    end_s: float
    cost: SliceCost | None
    measured_s: float
    train_s: float
    train_j: float
    other_s: float = 0.0
    other_j: float = 0.0


LEAST_NOISE = 0.003
"""No slice is known better than this: its steps are never quite those of its neighbour."""
MOST_ERROR = 0.5
"""A reference that is not known better than by this part of it proves nothing."""
NEIGHBOURS = 2
"""Slices on either side of a boundary that are compared."""
PRIOR_DEGREES = 2.0
PRIOR_PHI = (1.5, 1.5, 0.5)
"""Of time, energy and power, before pairs show their scatter."""
CHOSEN = 1.25
"""Settings are chosen by the readings that prove them, neighbouring pairs share slices, and work
changes a little before it is noticed: on simulated runs intervals had to be this much wider."""
ONE_SIDED = 2.0
OTHER_WORK = 0.03
"""Standard error of a setting's level that was measured with other work only."""
_TIME, _ENERGY, _POWER = range(3)
_Key = tuple[int, Setting]


class _Difference(NamedTuple):
    """Logs of time, energy and power of the upper setting over the lower at a boundary.

    Attributes:
        variances: of the lower and of the upper side.
        later: the setting after the boundary.
    """

    regime: int
    lower: Setting
    upper: Setting
    logs: tuple[float, float, float]
    variances: tuple[float, float]
    later: Setting

    @property
    def variance(self) -> float:
        return sum(self.variances)

    def joined(self, after: "_Difference") -> "_Difference":
        """Return the mean with the difference at the next boundary, which shares a slice."""
        time, energy, power = ((a + b) / 2 for a, b in zip(self.logs, after.logs, strict=True))
        lower, upper = ((a + b) / 2 for a, b in zip(self.variances, after.variances, strict=True))
        # The shared side is the same twice, the other one is two slices.
        variances = (lower, upper / 2) if self.later == self.lower else (lower / 2, upper)
        return self._replace(logs=(time, energy, power), variances=variances)

    def alone(self) -> "_Difference":
        """Return the difference of one boundary only, in which drift does not cancel."""
        lower, upper = self.variances
        return self._replace(variances=(ONE_SIDED * lower, ONE_SIDED * upper))

    @property
    def edge(self) -> tuple[int, Setting, Setting]:
        return self.regime, self.lower, self.upper


@dataclass(slots=True)
class _Edge:
    """Sums over the pairs of two settings: number, weights, weighted logs and their squares."""

    count: int = 0
    weight: float = 0.0
    sums: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    squares: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])

    def added(self, pair: _Difference) -> "_Edge":
        weight = 1 / pair.variance
        return _Edge(
            self.count + 1,
            self.weight + weight,
            [s + weight * x for s, x in zip(self.sums, pair.logs, strict=True)],
            [s + weight * x * x for s, x in zip(self.squares, pair.logs, strict=True)],
        )


@dataclass(slots=True)
class _Spent:
    train_s: float = 0.0
    train_j: float = 0.0


class _Levels(NamedTuple):
    """Levels of the settings of one regime that are connected to the reference."""

    settings: tuple[Setting, ...]
    logs: Array
    """Time, energy, power (columns) of each setting (rows), above the reference."""
    covariance: Array
    """Of the rows, for phi = 1."""


class SavingEstimator:
    """Adds up slices in the order of time and estimates what they saved.

    Memory does not grow with the number of slices, only with that of settings and regimes.
    """

    def __init__(self) -> None:
        self.other_s = self.other_j = 0.0
        self._spent: dict[_Key, _Spent] = {}
        self._edges: dict[tuple[int, Setting, Setting], _Edge] = {}
        self._blocks: list[list[MeasuredSlice]] = []
        """The last two runs of slices at one setting, without what lies between their ends."""
        self._pending: _Difference | None = None
        self._latest: _Difference | None = None
        self._noise_s, self._noise_weight = 0.0, 0.0
        self._fitted: tuple[dict[int, _Levels], tuple[float, float, float], float] | None = None

    def add(self, part: MeasuredSlice) -> None:
        key = part.regime, part.setting
        spent = self._spent.setdefault(key, _Spent())
        spent.train_s += part.train_s
        spent.train_j += part.train_j
        self.other_s += part.other_s
        self.other_j += part.other_j
        if part.cost is None:
            self.break_off()
            return
        # What few steps claim of their scatter is itself uncertain, so all slices share theirs.
        forget = 0.98
        self._noise_s = forget * self._noise_s + part.measured_s * part.cost.noise**2
        self._noise_weight = forget * self._noise_weight + 1
        block = self._blocks[-1] if self._blocks else None
        if block and (block[-1].regime, block[-1].setting) == key:
            block.append(part)
            if len(block) > 2 * NEIGHBOURS:
                del block[NEIGHBOURS]
            if len(block) <= NEIGHBOURS:
                self._compare()
            return
        self._complete()
        self._blocks = [*self._blocks[-1:], [part]]
        self._compare()

    def _compare(self) -> None:
        """Subtract what lies on both sides of the last boundary."""
        self._latest = self._difference()
        self._fitted = None

    def noise(self, measured_s: float) -> float:
        """Return the standard error of the time or energy of a slice of this length."""
        if self._noise_weight <= 0:
            return 0.05
        pooled = self._noise_s / self._noise_weight / max(measured_s, 1e-3)
        return max(math.sqrt(pooled), LEAST_NOISE)

    def break_off(self) -> None:
        """Compare nothing before with anything after: the work changed, or was not measured."""
        self._complete()
        self._emit()
        self._blocks = []
        self._fitted = None

    def change_work(self, since: Sequence[MeasuredSlice], regime: int) -> None:
        """Count the latest slices as those of another regime, and compare them with nothing."""
        for part in since:
            spent = self._spent[part.regime, part.setting]
            spent.train_s -= part.train_s
            spent.train_j -= part.train_j
            other = self._spent.setdefault((regime, part.setting), _Spent())
            other.train_s += part.train_s
            other.train_j += part.train_j
        self._pending = self._latest = self._fitted = None
        self._blocks = []

    def _complete(self) -> None:
        """Join the difference at the last boundary with the one before it."""
        latest, self._latest = self._latest, None
        if latest is None:
            self._emit()
        elif self._pending is not None and self._joins(self._pending, latest):
            self._insert(self._pending.joined(latest))
            self._pending = None
        else:
            self._emit()
            self._pending = latest

    def _joins(self, before: _Difference, after: _Difference) -> bool:
        """Return True for the two ends of a block that is short enough to be the same at both."""
        return before.edge == after.edge and len(self._blocks[-2]) <= NEIGHBOURS

    def _emit(self) -> None:
        if self._pending is not None:
            self._insert(self._pending.alone())
            self._pending = None

    def _insert(self, pair: _Difference) -> None:
        self._edges[pair.edge] = self._edges.get(pair.edge, _Edge()).added(pair)

    def _difference(self) -> _Difference | None:
        if len(self._blocks) < 2 or self._blocks[-2][-1].regime != self._blocks[-1][0].regime:
            return None
        sides = sorted(
            (self._blocks[-2][-NEIGHBOURS:], self._blocks[-1][:NEIGHBOURS]),
            key=lambda side: _order(side[0].setting),
        )
        (low, low_variance), (high, high_variance) = map(self._mean, sides)
        time, energy = high[0] - low[0], high[1] - low[1]
        return _Difference(
            sides[0][0].regime,
            sides[0][0].setting,
            sides[1][0].setting,
            (time, energy, energy - time),
            (low_variance, high_variance),
            self._blocks[-1][0].setting,
        )

    def _mean(self, parts: Sequence[MeasuredSlice]) -> tuple[tuple[float, float], float]:
        weighed = [(p.cost, p.measured_s) for p in parts if p.cost is not None]
        total_s = sum(length_s for _, length_s in weighed)
        time = sum(length_s * math.log(cost.time_s) for cost, length_s in weighed) / total_s
        energy = sum(length_s * math.log(cost.energy_j) for cost, length_s in weighed) / total_s
        return (time, energy), self.noise(total_s) ** 2

    # -- estimates -------------------------------------------------------------------------

    def _all_edges(self) -> dict[tuple[int, Setting, Setting], _Edge]:
        """Return the edges with the differences that are not complete yet."""
        edges = dict(self._edges)
        pending, latest = self._pending, self._latest
        if pending is not None and latest is not None and self._joins(pending, latest):
            pending, latest = pending.joined(latest), None
        else:
            pending, latest = (x and x.alone() for x in (pending, latest))
        for pair in (pending, latest):
            if pair is not None:
                edges[pair.edge] = edges.get(pair.edge, _Edge()).added(pair)
        return edges

    def _fit(self) -> tuple[dict[int, _Levels], tuple[float, float, float], float]:
        """Return the levels of every regime, phi of time, energy, power, and its degrees."""
        if self._fitted is None:
            edges = self._all_edges()
            degrees = PRIOR_DEGREES
            sums = [PRIOR_DEGREES * phi for phi in PRIOR_PHI]
            levels = {}
            for regime in {edge[0] for edge in edges}:
                own = {(a, b): edge for (r, a, b), edge in edges.items() if r == regime}
                fitted, squares, free = _solve(own)
                degrees += free
                sums = [s + x for s, x in zip(sums, squares, strict=True)]
                if fitted is not None:
                    levels[regime] = fitted
            time, energy, power = (s / degrees for s in sums)
            self._fitted = levels, (time, energy, power), degrees
        return self._fitted

    def readings(self, regime: int) -> tuple[SettingReading, ...]:
        """Return every setting of a regime that is connected to the reference by pairs."""
        levels, phi, _ = self._fit()
        if regime not in levels:
            return ()
        own = levels[regime]
        return tuple(
            SettingReading(
                setting,
                float(own.logs[i, _TIME]),
                float(own.logs[i, _ENERGY]),
                math.sqrt(phi[_TIME] * own.covariance[i, i]),
                math.sqrt(phi[_POWER] * own.covariance[i, i]),
            )
            for i, setting in enumerate(own.settings)
        )

    @property
    def pairs(self) -> int:
        return sum(edge.count for edge in self._all_edges().values())

    def totals(self) -> tuple[float, float]:
        """Time and energy of all ordinary steps."""
        every = self._spent.values()
        return sum(x.train_s for x in every), sum(x.train_j for x in every)

    def extra(self) -> tuple[float, float, float]:
        """Return the time at the reference, the time lost so far, and its standard error."""
        time = self._sum(_TIME)
        return time.reference, time.actual - time.reference, time.error

    def _sum(self, which: int) -> "_Sum":
        levels, phi, _ = self._fit()
        actual = reference = unproven = 0.0
        weights: dict[int, Array] = {n: np.zeros(len(x.settings)) for n, x in levels.items()}
        elsewhere = 0.0
        for (regime, setting), x in self._spent.items():
            spent = x.train_s if which == _TIME else x.train_j
            actual += spent
            source = _nearest(levels, regime, setting)
            if setting == REFERENCE or source is None:
                reference += spent
                unproven += spent if setting != REFERENCE else 0.0
                continue
            row = levels[source].settings.index(setting)
            would = spent * math.exp(-float(levels[source].logs[row, which]))
            reference += would
            weights[source][row] += would
            elsewhere += (OTHER_WORK * would) ** 2 if source != regime else 0.0
        variance = sum(float(w @ levels[n].covariance @ w) for n, w in weights.items())
        error = math.sqrt(max(0.0, phi[which] * variance) + elsewhere)
        return _Sum(actual, reference, error, unproven)

    def estimate(self) -> "SavingEstimate | None":
        """Return what the slices saved; None where nothing was compared, or nothing can be told."""
        levels, _, degrees = self._fit()
        time, energy = self._sum(_TIME), self._sum(_ENERGY)
        if not levels or time.reference <= 0 or energy.reference <= 0:
            return None
        width = CHOSEN * student_95(degrees)
        if any(width * each.error >= MOST_ERROR * each.reference for each in (time, energy)):
            return None
        saved_j = energy.reference - energy.actual
        saved = GainInterval(
            saved_j, saved_j - width * energy.error, saved_j + width * energy.error
        )
        shares = (1 - energy.actual / (energy.actual + x) for x in asdict(saved).values())
        slow = (
            time.actual / (time.reference - side * width * time.error) - 1 for side in (0, -1, 1)
        )
        return SavingEstimate(
            GainInterval(*(100 * x for x in shares)),
            saved,
            GainInterval(*(100 * x for x in slow)),
            energy.unproven,
        )


class SavingEstimate(NamedTuple):
    """Figures of `SavingResult`, with 90% intervals."""

    saved_pct: GainInterval
    saved_j: GainInterval
    slowdown_pct: GainInterval
    unproven_j: float


class _Sum(NamedTuple):
    actual: float
    reference: float
    error: float
    unproven: float


def _order(setting: Setting) -> tuple[float, float]:
    """The reference is first."""
    return setting.cap_w or 0.0, setting.clock_mhz or 0.0


def _nearest(levels: Mapping[int, _Levels], regime: int, setting: Setting) -> int | None:
    """Return the regime whose level of a setting counts: its own, else the nearest that has one."""
    known = [number for number, x in levels.items() if setting in x.settings]
    return min(known, key=lambda number: abs(number - regime), default=None)


def _solve(
    edges: Mapping[tuple[Setting, Setting], _Edge],
) -> tuple[_Levels | None, list[float], float]:
    """Return levels by weighted least squares, residual squares, and their degrees of freedom."""
    connected = {REFERENCE}
    while True:
        more = {s for pair in edges for s in pair if connected.intersection(pair)} - connected
        if not more:
            break
        connected |= more
    used = {pair: edge for pair, edge in edges.items() if pair[0] in connected}
    settings = tuple(sorted(connected - {REFERENCE}, key=_order))
    if not settings:
        return None, [0.0, 0.0, 0.0], 0.0
    place = {setting: i for i, setting in enumerate(settings)}
    normal, right = np.zeros((len(settings), len(settings))), np.zeros((len(settings), 3))
    for (lower, upper), edge in used.items():
        signs = np.zeros(len(settings))
        if lower in place:
            signs[place[lower]] = -1
        signs[place[upper]] = 1
        normal += edge.weight * np.outer(signs, signs)
        right += np.outer(signs, edge.sums)
    covariance: Array = np.linalg.inv(normal).astype(np.float64)
    logs = covariance @ right
    squares = [sum(e.squares[i] for e in used.values()) for i in range(3)]
    fitted = [float(right[:, i] @ logs[:, i]) for i in range(3)]
    free = sum(e.count for e in used.values()) - len(settings)
    left = [max(0.0, a - b) for a, b in zip(squares, fitted, strict=True)]
    return _Levels(settings, logs, covariance), left, float(free)
