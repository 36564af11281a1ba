"""Export of runs, samples, signals, windows, steps and phases in any format; copies of stores.

Every table names its columns and their types; None is a missing value and never a zero.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from sqlalchemy import Connection, insert, select

from wattloop.core.errors import ConfigError
from wattloop.core.records import Scope
from wattloop.core.units import iso_time
from wattloop.store.database import Store
from wattloop.store.formats import prometheus
from wattloop.store.formats.table_files import (
    ExportTable,
    Target,
    Value,
    json_of_runs,
    write_csv_file,
    write_json_file,
    write_parquet_file,
)
from wattloop.store.job_rows import refresh_job_in
from wattloop.store.run_record import read_steps, read_windows
from wattloop.store.runs import RunRecord, has_run
from wattloop.store.sample_queries import read_samples
from wattloop.store.samples import Series, series_of
from wattloop.store.schema import metadata, runs

RunTotals = prometheus.RunTotals
_STEP_COLUMNS: dict[str, type] = {
    **{"steps": int, "step_s": float, "step_j": float},
    **{"samples": float, "sample_j": float, "samples_per_j": float},
    **{"tokens": float, "token_j": float, "tokens_per_j": float},
}
FORMATS = ("csv", "json", "parquet", "prometheus")
_ENDINGS = {".json": "json", ".parquet": "parquet", ".prom": "prometheus"}


def export(
    store: Store,
    records: Sequence[RunRecord],
    *,
    what: str = "runs",
    file_format: str = "csv",
    target: str = "-",
    totals: RunTotals | None = None,
) -> None:
    """Write the table `what` of `records` to the file `target`; `-` is standard output.

    `totals` are the steps and phases of runs that have any, for all tables but `steps`.

    Raises:
        ConfigError: unknown table or format, a combination that makes no sense, an optional
            library that is not installed, or a target that cannot be written.
    """
    _known(what, TABLES, "--what")
    _known(file_format, FORMATS, "--format")
    place = Target(target)
    if file_format == "prometheus":
        if what != "runs":
            raise ConfigError(f"--format prometheus holds totals of runs, not {what}; use csv")
        place.write_text(prometheus.text_of(records, totals))
    elif file_format == "json" and what == "runs":
        place.write_text(json_of_runs(records))
    else:
        _WRITERS[file_format](export_table(what, store, records, totals), place)


def format_for(target: str, asked: str | None) -> str:
    """Return the requested format, else the one of the file's suffix, else CSV."""
    return asked or _ENDINGS.get(PurePath(target).suffix.lower(), "csv")


_WRITERS: dict[str, Callable[[Any, Target], None]] = {
    "csv": write_csv_file,
    "json": write_json_file,
    "parquet": write_parquet_file,
}


def _known(word: str, allowed: Sequence[str] | dict[str, Any], option: str) -> None:
    if word not in allowed:
        raise ConfigError(f"{option} {word}: unknown; choose one of {', '.join(allowed)}")


def copy_runs(source: Store, target: Store) -> tuple[list[str], list[str]]:
    """Copy runs that the target lacks; return (copied, already there).

    Each run is one transaction: interrupted, the copy is continued by starting it again.
    """
    if source.place.label == target.place.label:
        raise ConfigError(f"{source.where}: source and target are the same store")
    with source.reading() as connection:
        query = select(runs.c.run_id).order_by(runs.c.started_wall_s)
        run_ids = [run_id for (run_id,) in connection.execute(query)]
    copied, known = [], []
    for run_id in run_ids:
        with source.reading() as old, target.writing() as new:
            if has_run(new, run_id):
                known.append(run_id)
                continue
            _copy(old, new, run_id)
        copied.append(run_id)
    return copied, known


def _copy(old: Connection, new: Connection, run_id: str) -> None:
    """Copy all rows of a run, in every table that belongs to runs."""
    for table in metadata.sorted_tables:
        if "run_id" not in table.c:
            continue
        found = old.execute(select(table).where(table.c.run_id == run_id)).mappings()
        rows = [dict(row) for row in found]
        if rows:
            new.execute(insert(table), rows)
    job_key = new.execute(select(runs.c.job_key).where(runs.c.run_id == run_id)).scalar()
    if job_key is not None:
        refresh_job_in(new, job_key)


def export_table(
    what: str, store: Store, records: Sequence[RunRecord], totals: RunTotals | None = None
) -> ExportTable:
    """Return the table called `what` of these runs."""
    if what == "runs":
        return _runs(records, totals or {})
    if what == "phases":
        return _phases(records, totals or {})
    return TABLES[what](store, records)


def _runs(records: Sequence[RunRecord], totals: RunTotals) -> ExportTable:
    columns: dict[str, type] = {name: kind for name, kind, _ in _RUN_COLUMNS}

    def rows() -> Iterator[tuple[Value, ...]]:
        for record in records:
            known = totals.get(record.run_id, {})
            steps = (known.get(name) for name in _STEP_COLUMNS)
            yield (*(value(record) for _, _, value in _RUN_COLUMNS), *steps)

    return ExportTable(columns | _STEP_COLUMNS, rows())


def _phases(records: Sequence[RunRecord], totals: RunTotals) -> ExportTable:
    """Return one row per phase of a run; their times and energies add up to the run's."""
    columns = {"run_id": str, "phase": str, "time_s": float, "energy_j": float, "parts": int}
    return ExportTable(
        columns,
        (
            (record.run_id, *(phase.get(n) for n in ("name", "time_s", "energy_j", "parts")))
            for record in records
            for phase in totals.get(record.run_id, {}).get("phases", ())
        ),
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

    `count` is above 1 where a very long run wrote several steps as one row. `ended` is the time of
    day at the end of the row, `energy_j` the sum of the domains that count no joule twice.
    """
    found = [(record, step) for record in records for step in read_steps(store, record.run_id)]
    domains = list(dict.fromkeys(name for _, step in found for name in step.get("energy") or {}))
    metrics = list(dict.fromkeys(name for _, step in found for name in step.get("metrics") or {}))
    columns: dict[str, type] = {
        **{"run_id": str, "kind": str, "index": int, "epoch": int, "count": int},
        **{"begin_s": float, "end_s": float, "duration_s": float},
        **{"ended": str, "energy_j": float},
    }
    read = {(record.run_id, name) for record, step in found for name in step.get("energy") or {}}
    for name in domains:
        columns |= {f"energy_j {name}": float, f"uncertainty_j {name}": float}
    columns |= {f"metric {name}": float for name in metrics}

    def rows() -> Iterator[tuple[Value, ...]]:
        for record, step in found:
            run_id = record.run_id
            counted = () if record.result is None else record.result.counted
            added = [domain.name for domain in counted if (run_id, domain.name) in read]
            energy, values = step.get("energy") or {}, step.get("metrics") or {}
            pairs = [value for name in domains for value in energy.get(name) or (None, None)]
            begin_s, end_s = step["begin_s"], step["end_s"]
            which = (step["kind"], step["index"], step.get("epoch"), step.get("count", 1))
            ended = iso_time(record.started_wall_s + end_s - record.started_s)
            times = (begin_s, end_s, end_s - begin_s, ended)
            head = (run_id, *which, *times, _total_j(energy, added))
            yield (*head, *pairs, *(_number(values.get(name)) for name in metrics))

    return ExportTable(columns, rows())


def _total_j(energy: Mapping[str, Any], names: Sequence[str]) -> float | None:
    """Return the sum; None where a part was not read."""
    parts = [_number((energy.get(name) or (None,))[0]) for name in names]
    known = [part for part in parts if part is not None]
    return math.fsum(known) if known and len(known) == len(names) else None


TABLES: dict[str, Callable[[Store, Sequence[RunRecord]], ExportTable]] = {
    "runs": lambda _, records: _runs(records, {}),
    "samples": _samples,
    "signals": _signals,
    "windows": _windows,
    "steps": _steps,
    "phases": lambda _, records: _phases(records, {}),
}
"""Tables by name."""


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


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
    ("carbon_g", float, lambda r: _number((r.accounting or {}).get("carbon_g"))),
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
