"""Runs side by side: energy and EDP per scope, time and power, and which differences are real.

A difference counts as real when it exceeds the uncertainty of both values together. The same
sensor errs the same way in both runs, so its systematic error cancels; between different sensors
or machines it is added.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.core.records import Scope
from wattloop.core.results import DomainEnergy
from wattloop.store.runs import RunRecord

__all__ = ["Cell", "Comparison", "Quantity", "compare"]

TOTAL = "total"
"""Everything that was read, each device once; what that is may differ between runs."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One quantity of one run, and how it differs from that of the first.

    `difference` and `difference_uncertainty` are fractions of the first run's value; None where
    one of the two is not known. `real` is None where there is nothing to compare.
    """

    value: float | None
    uncertainty: float
    difference: float | None = None
    difference_uncertainty: float | None = None
    real: bool | None = None


@dataclass(frozen=True, slots=True)
class Quantity:
    """One row: `energy`, `power` or `edp` of a scope, or `time`."""

    name: str
    scope: str
    unit: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The first run is what the others are compared with."""

    records: tuple[RunRecord, ...]
    quantities: tuple[Quantity, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; differences in percent."""
        return {
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


def compare(records: Sequence[RunRecord]) -> Comparison:
    """Compare every run with the first."""
    if len(records) < 2:
        raise ConfigError("comparing needs two runs or more; see them with: wattloop runs list")
    if len({record.run_id for record in records}) < len(records):
        raise ConfigError("the same run is named twice; a run compared with itself tells nothing")
    rows = [_row("time", "", "s", records, lambda record: (record.duration_s, 0.0))]
    for scope in (TOTAL, *Scope):
        energy = _row("energy", scope, "J", records, partial(_energy, scope, records[0]))
        if any(cell.value is not None for cell in energy.cells):
            rows.append(energy)
            for name, unit, power in (("power", "W", -1), ("edp", "J s", 1)):
                value_of = partial(_scaled, power, scope, records[0])
                rows.append(_row(name, scope, unit, records, value_of))
    return Comparison(tuple(records), tuple(rows), tuple(_notes(records)))


Known = tuple[float | None, float]


def _row(
    name: str,
    scope: str,
    unit: str,
    records: Sequence[RunRecord],
    value_of: Callable[[RunRecord], Known],
) -> Quantity:
    first, first_uncertainty = value_of(records[0])
    cells = [Cell(first, first_uncertainty)]
    for record in records[1:]:
        cells.append(_cell(value_of(record), (first, first_uncertainty)))
    return Quantity(name, str(scope), unit, tuple(cells))


def _cell(known: Known, first: Known) -> Cell:
    value, uncertainty = known
    base, base_uncertainty = first
    if value is None or base is None:
        return Cell(value, uncertainty)
    together = math.hypot(uncertainty, base_uncertainty)
    real = abs(value - base) > together
    if base == 0:
        return Cell(value, uncertainty, real=real)
    # d(b/a - 1) = b/a * sqrt((ub/b)^2 + (ua/a)^2)
    spread = math.hypot(uncertainty / base, value / base * (base_uncertainty / base))
    return Cell(value, uncertainty, value / base - 1, spread, real)


def _energy(scope: str, first: RunRecord, record: RunRecord) -> Known:
    parts = _parts(record, scope)
    if not parts:
        return None, 0.0
    total_j = sum(part.energy_j or 0.0 for part in parts)
    same = _sensors(record, scope) == _sensors(first, scope)
    squares = [
        part.uncertainty_j**2 + (0.0 if same else _systematic_j(part) ** 2) for part in parts
    ]
    return total_j, math.sqrt(sum(squares))


def _scaled(power: int, scope: str, first: RunRecord, record: RunRecord) -> Known:
    """Energy times (EDP) or divided by (power) the duration, which is known exactly."""
    value, uncertainty = _energy(scope, first, record)
    duration_s = record.duration_s
    if value is None or not duration_s or duration_s <= 0:
        return None, 0.0
    return value * duration_s**power, uncertainty * duration_s**power


def _parts(record: RunRecord, scope: str) -> tuple[DomainEnergy, ...]:
    if record.result is None:
        return ()
    if scope == TOTAL:
        return record.result.counted
    return record.result.scope_domains(Scope(scope))


def _sensors(record: RunRecord, scope: str) -> set[tuple[str, str, str, str]]:
    machine = record.machine_id or record.host
    return {(machine, part.name, part.source, part.device) for part in _parts(record, scope)}


def _systematic_j(part: DomainEnergy) -> float:
    """Not in the uncertainty of measured domains; modelled and estimated ones have it already."""
    if part.provenance.value in ("modelled", "estimated"):
        return 0.0
    return part.known_error * (part.energy_j or 0.0)


def _notes(records: Sequence[RunRecord]) -> list[str]:
    """What makes the runs less comparable than a table of numbers suggests."""
    notes = []
    first = records[0]
    names = {part.name for part in _parts(first, TOTAL)}
    for record in records:
        if not record.counted:
            notes.append(f"{record.run_id}: its devices are counted by run {record.counted_by}")
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
