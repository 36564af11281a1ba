"""Export tables: runs, samples, signals, windows and steps as rows.

Every table names its columns and their types; None is a missing value and never a zero.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from wattloop.core.records import Scope
from wattloop.store.database import Store
from wattloop.store.details import read_steps, read_windows
from wattloop.store.runs import RunRecord
from wattloop.store.sample_queries import read_samples
from wattloop.store.samples import Series, series_of

Value = str | float | int | bool | None


@dataclass(frozen=True, slots=True)
class ExportTable:
    """Columns with their types, and rows that are generated while they are read."""

    columns: dict[str, type]
    rows: Iterator[tuple[Value, ...]]


def table_of(what: str, store: Store, records: Sequence[RunRecord]) -> ExportTable:
    """Return the table called `what` of these runs."""
    return TABLES[what](store, records)


def iso_time(wall_s: float | None) -> str | None:
    """Format a time as `2026-01-31T12:00:00.123Z`; None when it is unknown or out of range."""
    if wall_s is None:
        return None
    try:
        moment = datetime.fromtimestamp(wall_s, UTC)
    except (OverflowError, OSError, ValueError):
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _runs(store: Store, records: Sequence[RunRecord]) -> ExportTable:
    return ExportTable(
        {name: kind for name, kind, _ in _RUN_COLUMNS},
        (tuple(value(record) for _, _, value in _RUN_COLUMNS) for record in records),
    )


def _samples(store: Store, records: Sequence[RunRecord]) -> ExportTable:
    """Return raw joules and watts; with one run exactly what the replay meter reads."""
    columns = {"time_s": float, "domain": str, "kind": str, "value": float}
    return _readings(store, records, columns, lambda s: s.kind != "signal", lambda s: s.kind)


def _signals(store: Store, records: Sequence[RunRecord]) -> ExportTable:
    columns = {"time_s": float, "signal": str, "unit": str, "value": float}
    return _readings(store, records, columns, lambda s: s.kind == "signal", lambda s: s.unit)


def _readings(
    store: Store,
    records: Sequence[RunRecord],
    columns: dict[str, type],
    wanted: Callable[[Series], bool],
    third: Callable[[Series], str],
) -> ExportTable:
    several = len(records) > 1

    def rows() -> Iterator[tuple[Value, ...]]:
        for record in records:
            tail = (record.run_id,) if several else ()
            for series in filter(wanted, series_of(record.feeds)):
                label = third(series)
                readings = read_samples(store, record.run_id, series)
                for time_s, value in zip(*readings, strict=True):
                    known = None if math.isnan(value) else value
                    yield (time_s, series.name, label, known, *tail)

    return ExportTable(columns | ({"run_id": str} if several else {}), rows())


def _windows(store: Store, records: Sequence[RunRecord]) -> ExportTable:
    """Return one row per window and domain; add up only those with `in_total`."""
    columns = {
        **{"run_id": str, "window_id": int, "parent_id": int, "window": str},
        **{"begin_s": float, "end_s": float, "duration_s": float, "domain": str, "scope": str},
        **{"energy_j": float, "uncertainty_j": float, "provenance": str, "source": str},
        **{"covered": float, "in_total": bool},
    }

    def rows() -> Iterator[tuple[Value, ...]]:
        for record in records:
            roots = [] if record.result is None else [record.result]
            inner = [w for w in read_windows(store, record.run_id) if w not in roots]
            for window in [*roots, *inner]:
                head = (
                    *(record.run_id, window.window_id, window.parent_id, window.name),
                    *(window.begin_s, window.end_s, window.duration_s),
                )
                for d in window.domains:
                    tail = (d.provenance.value, d.source, d.covered, d.in_total)
                    yield (*head, d.name, d.scope.value, d.energy_j, d.uncertainty_j, *tail)
                if not window.domains:
                    yield (*head, *[None] * 8)

    return ExportTable(columns, rows())


def _steps(store: Store, records: Sequence[RunRecord]) -> ExportTable:
    """Return one row per training step or epoch, one column per domain and metric.

    `count` is above 1 where a very long run wrote several steps as one row.
    """
    found = [(r.run_id, step) for r in records for step in read_steps(store, r.run_id)]
    domains = list(dict.fromkeys(name for _, step in found for name in step.get("energy") or {}))
    metrics = list(dict.fromkeys(name for _, step in found for name in step.get("metrics") or {}))
    columns: dict[str, type] = {
        **{"run_id": str, "kind": str, "index": int, "epoch": int, "count": int},
        **{"begin_s": float, "end_s": float, "duration_s": float},
    }
    for name in domains:
        columns |= {f"energy_j {name}": float, f"uncertainty_j {name}": float}
    columns |= {f"metric {name}": float for name in metrics}

    def rows() -> Iterator[tuple[Value, ...]]:
        for run_id, step in found:
            energy, values = step.get("energy") or {}, step.get("metrics") or {}
            pairs = [value for name in domains for value in energy.get(name) or (None, None)]
            begin_s, end_s = step["begin_s"], step["end_s"]
            which = (step["kind"], step["index"], step.get("epoch"), step.get("count", 1))
            head = (run_id, *which, begin_s, end_s, end_s - begin_s)
            yield (*head, *pairs, *(_number(values.get(name)) for name in metrics))

    return ExportTable(columns, rows())


TABLES: dict[str, Callable[[Store, Sequence[RunRecord]], ExportTable]] = {
    "runs": _runs,
    "samples": _samples,
    "signals": _signals,
    "windows": _windows,
    "steps": _steps,
}
"""Tables by name."""


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _accounted(key: str) -> Callable[[RunRecord], float | None]:
    return lambda record: _number((record.accounting or {}).get(key))


def _cost(record: RunRecord) -> dict[str, Any]:
    cost = (record.accounting or {}).get("cost")
    return cost if isinstance(cost, dict) else {}


def _scope(scope: Scope) -> Callable[[RunRecord], float | None]:
    return lambda record: None if record.result is None else record.result.scope_energy_j(scope)


def _of_result(name: str) -> Callable[[RunRecord], Any]:
    return lambda record: None if record.result is None else getattr(record.result, name)


def _missing(record: RunRecord) -> str:
    known = record.result.missing if record.result is not None else ()
    names = [m.name for m in known] or [str(m.get("name")) for m in record.missing]
    return " ".join(names)


_RUN_COLUMNS: list[tuple[str, type, Callable[[RunRecord], Any]]] = [
    ("run_id", str, lambda r: r.run_id),
    ("name", str, lambda r: r.name),
    ("status", str, lambda r: r.status.value),
    ("kind", str, lambda r: r.kind),
    ("started", str, lambda r: iso_time(r.started_wall_s)),
    ("duration_s", float, lambda r: r.duration_s),
    ("energy_j", float, lambda r: r.energy_j),
    ("uncertainty_j", float, _of_result("uncertainty_j")),
    ("power_w", float, _of_result("power_w")),
    ("provenance", str, _of_result("provenance")),
    ("complete", bool, _of_result("complete")),
    ("missing", str, _missing),
    ("cpu_energy_j", float, _scope(Scope.CPU)),
    ("gpu_energy_j", float, _scope(Scope.GPU)),
    ("dram_energy_j", float, _scope(Scope.DRAM)),
    ("node_energy_j", float, _scope(Scope.NODE)),
    ("carbon_g", float, _accounted("carbon_g")),
    ("cost", float, lambda r: _number(_cost(r).get("amount"))),
    ("currency", str, lambda r: _cost(r).get("currency")),
    ("exit_code", int, lambda r: r.exit_code),
    ("signal", int, lambda r: r.signal),
    ("host", str, lambda r: r.host),
    ("user", str, lambda r: r.user),
    ("job_id", str, lambda r: str(r.job["id"]) if r.job and r.job.get("id") else None),
    ("counted", bool, lambda r: r.counted),
    ("counted_by", str, lambda r: r.counted_by),
    ("shared_s", float, lambda r: _number((r.shared or {}).get("overlap_s"))),
    ("left_out_j", float, lambda r: _number((r.shared or {}).get("left_out_j"))),
    ("command", str, lambda r: None if r.command is None else json.dumps(r.command)),
    ("tags", str, lambda r: json.dumps(r.tags)),
]
