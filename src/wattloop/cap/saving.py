"""Saving of a run at lower settings, estimated against slices at the reference: pairs, interval."""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from wattloop.cap.finder import GainInterval
from wattloop.cap.online import SliceCost
from wattloop.core.errors import ConfigError
from wattloop.core.records import shape_fault


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

    `noise` is the standard error of both.
    """

    setting: Setting
    log_time: float
    log_energy: float
    noise: float


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
        return {
            **asdict(self),
            "setting": self.setting._asdict(),
            "readings": [r._asdict() | {"setting": r.setting._asdict()} for r in self.readings],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "LearnedSetting":
        """Convert back from `to_dict`. Raises ConfigError: it is not such a record."""
        fault = shape_fault(data, cls)
        if fault:
            raise ConfigError(f"learned setting: {fault}")
        readings = (
            SettingReading(_setting(r["setting"]), r["log_time"], r["log_energy"], r["noise"])
            for r in data.get("readings", ())
        )
        return cls(
            _setting(data["setting"]),
            data["reference_power_w"],
            data["reference_unit_s"],
            tuple(readings),
        )


def _setting(data: Mapping[str, Any]) -> Setting:
    return Setting(data.get("cap_w"), data.get("clock_mhz"))


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
            with a 90% interval; negative where it took more. None where nothing was compared.
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
        return {
            **asdict(self),
            "periods": [
                {"begin_s": p.begin_s, "setting": p.setting._asdict()} for p in self.periods
            ],
            "learned": None if self.learned is None else self.learned.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "SavingResult":
        """Convert back from `to_dict`; unknown fields are ignored. Raises ConfigError."""
        fault = shape_fault(data, cls)
        if fault:
            raise ConfigError(f"saving of a run: {fault}")
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        for name in ("saved_pct", "saved_j", "slowdown_pct", "expected_pct"):
            if known.get(name) is not None:
                known[name] = GainInterval(**known[name])
        known["state"] = SavingState(known["state"])
        known["periods"] = tuple(
            SettingPeriod(p["begin_s"], _setting(p["setting"])) for p in known.get("periods", ())
        )
        if known.get("learned") is not None:
            known["learned"] = LearnedSetting.from_dict(known["learned"])
        return cls(**known)


# The estimator. Slices follow one another; at each boundary between a reference slice and one at
# another setting, the log of time and of energy per unit of both are subtracted. Two neighbouring
# differences that share a slice (before and after a reference slice; before and after a probe) are
# averaged, so that linear drift cancels: that is one pair. Pairs of one setting scatter by their
# claimed noise times a factor phi, common to all and estimated from their scatter; the interval is
# that of Student's t.


class MeasuredSlice(NamedTuple):
    """Ordinary steps at one setting, and what lay between them.

    Attributes:
        regime: number of the workload; a change of work begins another.
        cost: of a unit of progress; None where too little was measured.
    """

    regime: int
    setting: Setting
    begin_s: float
    end_s: float
    cost: SliceCost | None
    train_s: float
    train_j: float
    other_s: float = 0.0
    other_j: float = 0.0


class Pair(NamedTuple):
    """Logs of time and energy of a setting over those of the reference, and claimed variance."""

    log_time: float
    log_energy: float
    variance: float


LEAST_NOISE = 0.002
"""No slice is known better than this: its steps are never quite those of its neighbour."""
NEIGHBOURS = 2
"""Slices on either side of a boundary that are compared."""
PRIOR_DEGREES = 2.0
PRIOR_PHI = 2.0
"""Before pairs show their scatter: as if two degrees of freedom had shown twice the claimed."""


@dataclass(slots=True)
class _Total:
    train_s: float = 0.0
    train_j: float = 0.0
    pairs: list[Pair] = field(default_factory=list)


_Key = tuple[int, Setting]
MOST_PAIRS = 512
"""Of one setting; older ones are merged two by two, so that memory is bounded."""


class SavingEstimator:
    """Adds up slices in the order of time and estimates what they saved."""

    def __init__(self) -> None:
        self.reference_slices = self.saving_slices = 0
        self.reference_s = 0.0
        self.other_s = self.other_j = 0.0
        self._totals: dict[_Key, _Total] = {}
        self._blocks: list[list[MeasuredSlice]] = []
        """The last two blocks: consecutive slices of one setting, `NEIGHBOURS` at most at ends."""
        self._pending: tuple[_Key, Pair] | None = None

    def add(self, part: MeasuredSlice) -> None:
        key = (part.regime, part.setting)
        total = self._totals.setdefault(key, _Total())
        total.train_s += part.train_s
        total.train_j += part.train_j
        self.other_s += part.other_s
        self.other_j += part.other_j
        if part.setting == REFERENCE:
            self.reference_slices += 1
            if self.saving_slices:
                self.reference_s += part.end_s - part.begin_s
        else:
            self.saving_slices += 1
        if part.cost is None:
            self.break_off()
            return
        last = self._blocks[-1] if self._blocks else None
        if last and (last[-1].regime, last[-1].setting) == key:
            last.append(part)
            # Both ends of a block are compared, its middle is not.
            if len(last) > 2 * NEIGHBOURS:
                del last[NEIGHBOURS]
            self._edge(part.regime)
            return
        self._settle_edge()
        self._blocks = [*self._blocks[-1:], [part]]
        self._edge(part.regime)

    def break_off(self) -> None:
        """Compare nothing before with anything after: the work changed, or was not measured."""
        self._settle_edge()
        self._emit()
        self._blocks = []

    # The difference at the last boundary grows more certain while the block after it grows.

    def _edge(self, regime: int) -> None:
        self._open = self._difference(regime)

    _open: tuple[_Key, Pair] | None = None

    def _difference(self, regime: int) -> tuple[_Key, Pair] | None:
        if len(self._blocks) < 2 or self._blocks[-2][-1].regime != regime:
            return None
        before, after = self._blocks[-2][-NEIGHBOURS:], self._blocks[-1][:NEIGHBOURS]
        settings = before[0].setting, after[0].setting
        if REFERENCE not in settings:
            return None
        base, own = (before, after) if settings[0] == REFERENCE else (after, before)
        a, b = _mean(base), _mean(own)
        pair = Pair(b.log_time - a.log_time, b.log_energy - a.log_energy, a.variance + b.variance)
        return (regime, own[0].setting), pair

    def _settle_edge(self) -> None:
        """Join the difference at the last boundary, now complete, with the one before it."""
        edge, self._open = self._open, None
        if edge is None:
            self._emit()
            return
        if self._pending is None:
            self._pending = edge
        elif self._pending[0] == edge[0]:
            self._append(edge[0], _joined(self._pending[1], edge[1]))
            self._pending = None
        else:
            self._emit()
            self._pending = edge

    def _emit(self) -> None:
        if self._pending is not None:
            self._append(*self._pending)
            self._pending = None

    def _append(self, key: _Key, pair: Pair) -> None:
        pairs = self._totals[key].pairs
        pairs.append(pair)
        if len(pairs) > MOST_PAIRS:
            half = [_joined(a, b) for a, b in zip(pairs[::2], pairs[1::2], strict=False)]
            self._totals[key].pairs = half + pairs[2 * len(half) :]

    # -- estimates -------------------------------------------------------------------------

    def _pairs(self) -> dict[_Key, list[Pair]]:
        """Pairs of every setting, those included that are not complete yet."""
        found = {key: list(total.pairs) for key, total in self._totals.items()}
        pending, edge = self._pending, self._open
        if pending is not None and edge is not None and pending[0] == edge[0]:
            pending, edge = (edge[0], _joined(pending[1], edge[1])), None
        for one in (pending, edge):
            if one is not None:
                found[one[0]].append(one[1])
        return {key: pairs for key, pairs in found.items() if pairs}

    def readings(self, regime: int) -> tuple[SettingReading, ...]:
        """Return every setting of a regime that was compared with the reference."""
        found = self._pairs()
        phi_time, phi_energy, _ = _scatter(found.values())
        return tuple(
            SettingReading(
                setting,
                _weighed(pairs, 0),
                _weighed(pairs, 1),
                math.sqrt(max(phi_time, phi_energy) / sum(1 / p.variance for p in pairs)),
            )
            for (number, setting), pairs in found.items()
            if number == regime
        )

    def pairs(self) -> int:
        return sum(map(len, self._pairs().values()))

    def totals(self) -> tuple[float, float]:
        """Time and energy of all ordinary steps."""
        every = self._totals.values()
        return sum(t.train_s for t in every), sum(t.train_j for t in every)

    def extra(self) -> tuple[float, float, float]:
        """Return the time at the reference, the time lost so far, and its standard error."""
        estimate = self._sum(0)
        return estimate.reference, estimate.actual - estimate.reference, estimate.error

    def _sum(self, which: int) -> "_Estimate":
        found = self._pairs()
        phi = _scatter(found.values())[which]
        actual = reference = variance = unproven = 0.0
        for (regime, setting), total in self._totals.items():
            spent = total.train_s if which == 0 else total.train_j
            actual += spent
            pairs = found.get((regime, setting)) or _elsewhere(found, setting)
            if setting == REFERENCE or not pairs:
                reference += spent
                unproven += spent if setting != REFERENCE else 0.0
                continue
            would = spent * math.exp(-_weighed(pairs, which))
            reference += would
            variance += would**2 * phi / sum(1 / p.variance for p in pairs)
        return _Estimate(actual, reference, math.sqrt(variance), unproven)

    def estimate(self) -> "SavingEstimate | None":
        """Return what the slices saved; None where nothing was compared."""
        found = self._pairs()
        time, energy = self._sum(0), self._sum(1)
        if not found or time.reference <= 0 or energy.reference <= 0:
            return None
        width = student_95(_scatter(found.values())[2])
        saved_j = energy.reference - energy.actual
        saved = GainInterval(
            saved_j, saved_j - width * energy.error, saved_j + width * energy.error
        )
        bounds = (1 - energy.actual / max(energy.actual + x, 1e-9) for x in asdict(saved).values())
        slow = [
            time.actual / max(time.reference - side * width * time.error, 1e-9) - 1
            for side in (0, -1, 1)
        ]
        percent = GainInterval(*(100 * x for x in bounds))
        return SavingEstimate(
            percent, saved, GainInterval(*(100 * x for x in slow)), energy.unproven
        )


class SavingEstimate(NamedTuple):
    """Figures of `SavingResult`, with 90% intervals."""

    saved_pct: GainInterval
    saved_j: GainInterval
    slowdown_pct: GainInterval
    unproven_j: float


class _Estimate(NamedTuple):
    actual: float
    reference: float
    error: float
    unproven: float


def _mean(parts: Sequence[MeasuredSlice]) -> Pair:
    costs = [part.cost for part in parts if part.cost is not None]
    n = len(costs)
    return Pair(
        sum(math.log(c.time_s) for c in costs) / n,
        sum(math.log(c.energy_j) for c in costs) / n,
        sum(max(c.noise, LEAST_NOISE) ** 2 for c in costs) / n**2,
    )


def _joined(a: Pair, b: Pair) -> Pair:
    # They share a slice, so their errors do not average out as those of strangers would.
    return Pair(
        (a.log_time + b.log_time) / 2,
        (a.log_energy + b.log_energy) / 2,
        0.75 * (a.variance + b.variance) / 2,
    )


def _weighed(pairs: Sequence[Pair], which: int) -> float:
    weights = [1 / p.variance for p in pairs]
    return sum(w * p[which] for w, p in zip(weights, pairs, strict=True)) / sum(weights)


def _elsewhere(found: Mapping[_Key, list[Pair]], setting: Setting) -> list[Pair]:
    """Return pairs of the same setting with other work, where this work has none."""
    return list(
        itertools.chain.from_iterable(pairs for (_, own), pairs in found.items() if own == setting)
    )


def _scatter(groups: Iterable[list[Pair]]) -> tuple[float, float, float]:
    """Return phi of time and of energy, and the degrees of freedom of both."""
    degrees = PRIOR_DEGREES
    sums = [PRIOR_DEGREES * PRIOR_PHI] * 2
    for pairs in groups:
        degrees += len(pairs) - 1
        for which in (0, 1):
            middle = _weighed(pairs, which)
            sums[which] += sum((p[which] - middle) ** 2 / p.variance for p in pairs)
    return sums[0] / degrees, sums[1] / degrees, degrees


_DEGREES = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 60, math.inf)
_STUDENT = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.860, 1.812, 1.753, 1.725, 1.697, 1.671)


def student_95(degrees: float) -> float:
    """Return the 95% quantile of Student's t, from its table, between in 1 / degrees."""
    values = (*_STUDENT, 1.645)
    for (d0, t0), (d1, t1) in itertools.pairwise(zip(_DEGREES, values, strict=True)):
        if degrees <= d1:
            inverse = 1 / max(degrees, d0)
            share = (1 / d0 - inverse) / (1 / d0 - 1 / d1)
            return t0 + share * (t1 - t0)
    return values[-1]
