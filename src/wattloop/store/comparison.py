"""Comparison of runs: energy and EDP per scope, time and power, and significant differences.

A difference counts as real when it exceeds the uncertainty of both values together. The same
sensor, and the same model on the same machine, errs the same way in both runs, so its systematic
error cancels (`core.results`); between different sensors, models or machines it is added.

That a difference is real says nothing about other runs. Where the runs were repeated, their means
are compared by Welch's t test of the logarithms.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.core.records import Scope
from wattloop.core.results import (
    MODELS,
    DomainEnergy,
    EnergyError,
    energy_error,
    ratio_error,
    student_95,
)
from wattloop.core.units import format_change, format_duration
from wattloop.store.runs import RunRecord

TOTAL = "total"
"""The sum of all devices that were read; these may differ between runs."""
MOST_SHARED = 0.05
"""Share of a run's time next to other runs on its devices above which no difference is certain."""
STEP_COSTS = {
    "step_j": ("energy per step", "J"),
    "step_s": ("time per step", "s"),
    "sample_j": ("energy per sample", "J"),
    "samples_per_j": ("samples per joule", "1/J"),
    "token_j": ("energy per token", "J"),
    "tokens_per_j": ("tokens per joule", "1/J"),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One quantity of one run, and its difference to the first run.

    `difference` and `difference_uncertainty` are fractions of the first run's value; None where
    one of the two is not known. `real` is None where there is nothing to compare.
    """

    value: float | None
    uncertainty: float
    difference: float | None = None
    difference_uncertainty: float | None = None
    real: bool | None = None


@dataclass(frozen=True, slots=True)
class ComparedQuantity:
    """One row: `energy`, `power` or `edp` of a scope, `time`, or one of `STEP_COSTS`."""

    name: str
    scope: str
    unit: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class RunComparison:
    """Runs compared with the first run."""

    records: tuple[RunRecord, ...]
    quantities: tuple[ComparedQuantity, ...]
    notes: tuple[str, ...]
    repeats: tuple[tuple[Mapping[str, float], ...], ...] = ()

    @property
    def verdicts(self) -> list[str]:
        """Return of each later run whether it is better than the first, and whether that is sure.

        Compared is the energy of a token, a sample or a step, the first that both runs counted,
        else the whole energy: steps of different batches are different work.
        """
        rows = {(quantity.name, quantity.scope): quantity for quantity in self.quantities}
        asked = {key: (STEP_COSTS[key][0], "") for key in ("token_j", "sample_j", "step_j")}
        asked["energy_j"] = ("energy", TOTAL)
        key = next((key for key, name in asked.items() if name in rows), None)
        if key is None:
            return []
        row = rows[asked[key]]
        groups = [[each[key] for each in group if each.get(key)] for group in self.repeats]
        return [
            _verdict(
                self.records[0],
                record,
                row.name,
                row.cells[at],
                rows["time", ""].cells[at],
                _variation(groups[0], groups[at], record.name == self.records[0].name)
                if groups
                else None,
            )
            for at, record in enumerate(self.records[1:], start=1)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; differences in percent."""
        return {
            "verdicts": self.verdicts,
            "baseline": self.records[0].run_id,
            "runs": [
                {"run_id": r.run_id, "name": r.name, "status": r.status.value} for r in self.records
            ],
            "quantities": [
                {
                    "name": quantity.name,
                    "scope": quantity.scope,
                    "unit": quantity.unit,
                    "values": [
                        _cell_dict(record.run_id, cell)
                        for record, cell in zip(self.records, quantity.cells, strict=True)
                    ],
                }
                for quantity in self.quantities
            ],
            "notes": list(self.notes),
        }


def compare(
    records: Sequence[RunRecord],
    step_costs: Sequence[Mapping[str, float]] = (),
    repeats: Sequence[Sequence[Mapping[str, float]]] = (),
) -> RunComparison:
    """Compare every run with the first.

    Args:
        records: the runs.
        step_costs: those of `STEP_COSTS` that are known of each run.
        repeats: for each run, `energy_j` and step costs of all runs that did the same.
    """
    if len(records) < 2:
        raise ConfigError("comparing needs two runs or more; see them with: wattloop runs list")
    if len({record.run_id for record in records}) < len(records):
        raise ConfigError("the same run is named twice; a run compared with itself tells nothing")
    rows = [_row("time", "", "s", [_Known(record.duration_s) for record in records])]
    for scope in (TOTAL, *Scope):
        energies = [_energy(scope, records[0], record) for record in records]
        if any(known.value is not None for known in energies):
            rows.append(_row("energy", scope, "J", energies))
            for name, unit, power in (("power", "W", -1), ("edp", "J s", 1)):
                scaled = [
                    _scaled(known, record.duration_s, power)
                    for known, record in zip(energies, records, strict=True)
                ]
                rows.append(_row(name, scope, unit, scaled))
    for key, (name, unit) in STEP_COSTS.items():
        values = [costs.get(key) for costs in step_costs]
        if sum(value is not None for value in values) > 1:
            pairs = zip(records, values, strict=True)
            rows.append(_row(name, "", unit, [_step_cost(records[0], *p, unit) for p in pairs]))
    groups = tuple(map(tuple, repeats))
    return RunComparison(tuple(records), tuple(rows), tuple(_notes(records)), groups)


@dataclass(frozen=True, slots=True)
class _Known:
    """One value; `error` and `scale` (value over energy) where it is made of an energy."""

    value: float | None
    uncertainty: float = 0.0
    error: EnergyError | None = None
    scale: float = 1.0


def _row(name: str, scope: str, unit: str, known: Sequence[_Known]) -> ComparedQuantity:
    first = known[0]
    cells = [Cell(first.value, first.uncertainty), *(_cell(each, first) for each in known[1:])]
    return ComparedQuantity(name, str(scope), unit, tuple(cells))


def _cell(known: _Known, first: _Known) -> Cell:
    value, base = known.value, first.value
    if value is None or base is None:
        return Cell(value, known.uncertainty)
    own, base_own, shared = known.uncertainty, first.uncertainty, 0.0
    if known.error is not None and first.error is not None and base != 0:
        common = known.error.models.keys() & first.error.models.keys()
        if common:
            own = known.error.without(common) * known.scale
            base_own = first.error.without(common) * first.scale
            shared = ratio_error(first.error, known.error) * known.scale / first.scale
    real = abs(value - base) > math.hypot(own, base_own, shared * base)
    if base == 0:
        return Cell(value, known.uncertainty, real=real)
    # d(b/a - 1) = b/a * sqrt((ub/b)^2 + (ua/a)^2), and what shared models leave
    spread = math.hypot(own / base, value / base * (base_own / base), shared)
    return Cell(value, known.uncertainty, value / base - 1, spread, real)


def _energy(scope: str, first: RunRecord, record: RunRecord) -> _Known:
    parts = _parts(record, scope)
    if record.result is None or not parts:
        return _Known(None)
    error = energy_error(parts, record.result.duration_s, record.machine_id or record.host)
    systematic = [0.0]
    if _sensors(record, scope) != _sensors(first, scope):
        # the stated uncertainty of models has their systematic error already
        measured = [part for part in parts if part.provenance not in MODELS]
        systematic += [part.known_error * (part.energy_j or 0.0) for part in measured]
        error = error._replace(random_j=math.hypot(error.random_j, *systematic))
    uncertainty_j = math.hypot(*(part.uncertainty_j for part in parts), *systematic)
    return _Known(error.energy_j, uncertainty_j, error)


def _scaled(known: _Known, duration_s: float | None, power: int) -> _Known:
    """Energy times (EDP) or divided by (power) the duration, which is known exactly."""
    if known.value is None or not duration_s or duration_s <= 0:
        return _Known(None)
    scale = duration_s**power
    return _Known(known.value * scale, known.uncertainty * scale, known.error, scale)


def _step_cost(first: RunRecord, record: RunRecord, cost: float | None, unit: str) -> _Known:
    """Return the cost of a step; its energy errs by the same fraction as that of the whole run."""
    if unit == "s" or cost is None:
        return _Known(cost)
    total = _energy(TOTAL, first, record)
    if not total.value:
        return _Known(None)
    scale = cost / total.value
    # an inverse errs by the same fraction as the energy, to first order
    return _Known(cost, total.uncertainty * scale, total.error, scale)


@dataclass(frozen=True, slots=True)
class Variation:
    """Difference of repeated runs as a fraction, with its 90% interval; None for one group."""

    counts: tuple[int, int]
    low: float
    high: float
    difference: float | None = None

    @property
    def text(self) -> str:
        if self.difference is None:
            most = format_change(self.high)
            return f"two of {self.counts[0]} runs of this name differ by up to {most}"
        first, second = self.counts
        return (
            f"means of {first} and {second} runs differ by {format_change(self.difference)} "
            f"({format_change(self.low)} to {format_change(self.high)})"
        )


def _variation(first: Sequence[float], second: Sequence[float], same: bool) -> Variation | None:
    """Return how repeats differ; of one name, how far two runs of it are apart in 90% of cases."""
    if min(len(first), len(second)) < (3 if same else 2):
        return None
    logs = [[math.log(value) for value in group] for group in (first, second)]
    parts = [variance(group) / len(group) for group in logs]
    if same:
        degrees, width = len(first) - 1.0, math.sqrt(2 * variance(logs[0]))
        apart = math.expm1(student_95(degrees) * width)
        return Variation((len(first), len(second)), -apart, apart)
    # Welch-Satterthwaite: degrees of freedom of a sum of two variances
    total = sum(parts)
    ends = sum(p**2 / (len(group) - 1) for p, group in zip(parts, logs, strict=True))
    width = student_95(total**2 / ends if ends else 1.0) * math.sqrt(total)
    mean = fmean(logs[1]) - fmean(logs[0])
    low, high = math.expm1(mean - width), math.expm1(mean + width)
    return Variation((len(first), len(second)), low, high, math.expm1(mean))


def _verdict(
    first: RunRecord, record: RunRecord, what: str, cell: Cell, time: Cell, varied: Variation | None
) -> str:
    same = first.name == record.name
    base, name = (r.run_id if same or not r.name else r.name for r in (first, record))
    if cell.difference is None:
        return f"{name} against {base}: unknown, as the energy of one is unknown"
    change = format_change(cell.difference, cell.difference_uncertainty or 0.0)
    scopes = [{str(part.scope) for part in _parts(each, TOTAL)} for each in (first, record)]
    if scopes[0] != scopes[1]:
        only = ", ".join(sorted(scopes[0] ^ scopes[1]))
        return f"{name} against {base}: not certain. {only} was read in one of them only"
    if not cell.real:
        return (
            f"{name} against {base}: not certain. Its {what} differs by {change}, "
            "which is within the uncertainty of the sensors"
        )
    doubts = [
        f"{each} {doubt}"
        for each, run in ((base, first), (name, record))
        for doubt in _doubts(run, what)
    ]
    if doubts:
        differs = f"Its {what} differs by {change}, but {' and '.join(doubts)}"
        return f"{name} against {base}: not certain. {differs}"
    if varied is not None:
        mean = cell.difference if varied.difference is None else varied.difference
        inside = varied.low <= 0 <= varied.high
        if varied.difference is None:
            inside = abs(cell.difference) <= varied.high
        if inside or (mean < 0) != (cell.difference < 0):
            return (
                f"{name} against {base}: not certain. The {what} of these two differs by {change}, "
                f"more than the sensors err; but runs vary: {varied.text}"
            )
    better, worse = (name, base) if cell.difference < 0 else (base, name)
    longer = f", time {format_change(time.difference)}" if time.difference else ""
    work = ", if both did the same work" if what == "energy" else ""
    return (
        f"{better} is better than {worse}{work}: {name} has {what} {change}{longer}. "
        f"{_certainty(varied)}"
    )


def _certainty(varied: Variation | None) -> str:
    if varied is None:
        return (
            "Certain of these two runs: more than the sensors err. Not known of others: repeat "
            "both under their names to see how much runs vary"
        )
    return f"Certain: more than the sensors err and more than runs vary ({varied.text})"


def _doubts(record: RunRecord, what: str) -> Iterator[str]:
    """Yield what makes a difference to this run uncertain, however well the sensors read."""
    shared = record.shared or {}
    if not shared.get("divided") and shared.get("share", 0.0) > MOST_SHARED:
        yield "shared its devices with other runs"
    if what == "energy" and record.status.value not in ("finished", "running"):
        yield "did not finish"


def _parts(record: RunRecord, scope: str) -> tuple[DomainEnergy, ...]:
    if record.result is None:
        return ()
    parts = record.result.counted
    if scope != TOTAL:
        parts = record.result.scope_domains(Scope(scope))
    # Records of earlier versions have this error only where the meter is described.
    stated = {
        domain["name"]: domain.get("known_error_w") or 0.0
        for feed in record.feeds
        for domain in feed.get("domains") or ()
        if domain.get("provenance") in MODELS
    }
    return tuple(
        part._replace(known_error_w=part.known_error_w or stated.get(part.name, 0.0))
        if part.provenance in MODELS
        else part
        for part in parts
    )


def _sensors(record: RunRecord, scope: str) -> set[tuple[str, str, str, str]]:
    machine = record.machine_id or record.host
    return {(machine, part.name, part.source, part.device) for part in _parts(record, scope)}


def _notes(records: Sequence[RunRecord]) -> list[str]:
    """Return reasons why the runs are less comparable than the numbers suggest."""
    notes = []
    first = records[0]
    names = {part.name for part in _parts(first, TOTAL)}
    for record in records:
        if not record.counted:
            notes.append(f"{record.run_id}: its devices are counted by run {record.counted_by}")
        if record.shared and not record.shared.get("divided"):
            overlap = format_duration(record.shared.get("overlap_s", 0.0))
            notes.append(
                f"{record.run_id}: other runs used the same devices for {overlap}; its energy "
                "includes theirs"
            )
        if record.status.value not in ("finished", "running"):
            notes.append(f"{record.run_id}: {record.status.value}, so its work may be incomplete")
    for record in records[1:]:
        others = {part.name for part in _parts(record, TOTAL)}
        if others != names:
            only = [*sorted(names - others), *sorted(others - names)]
            notes.append(
                f"totals of {first.run_id} and {record.run_id} cover different domains "
                f"({', '.join(only)} in one only); compare scope by scope"
            )
        kinds = [r.result.provenance if r.result else None for r in (first, record)]
        if None not in kinds and kinds[0] != kinds[1]:
            notes.append(
                f"total of {first.run_id} is {kinds[0]}, that of {record.run_id} is {kinds[1]}"
            )
        if (record.machine_id or record.host) != (first.machine_id or first.host):
            notes.append(f"{first.run_id} and {record.run_id} ran on different machines")
    return notes


def _cell_dict(run_id: str, cell: Cell) -> dict[str, Any]:
    def percent(fraction: float | None) -> float | None:
        return None if fraction is None else 100 * fraction

    return {
        "run_id": run_id,
        "value": cell.value,
        "uncertainty": cell.uncertainty if cell.value is not None else None,
        "difference_pct": percent(cell.difference),
        "difference_uncertainty_pct": percent(cell.difference_uncertainty),
        "within_uncertainty": None if cell.real is None else not cell.real,
    }
