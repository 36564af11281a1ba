"""Runs: insert, find, list and delete records; live runs are read from their journals."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    delete,
    func,
    insert,
    inspect,
    literal,
    select,
    union_all,
    update,
)

from wattloop.core.errors import RunNotFound
from wattloop.core.results import RunStatus
from wattloop.core.settings import Settings
from wattloop.store.database import Store
from wattloop.store.job_rows import job_key_in, lock_job_in, refresh_job_in
from wattloop.store.journal import journal_is_live, read_header
from wattloop.store.run_record import RunRecord, header_fault, read_record, record_rows
from wattloop.store.schema import deleted_totals, metadata, run_facts, run_tags, runs
from wattloop.store.trial_groups import TrialGroup, can_fold, is_trial_run, run_groups

__all__ = [
    "EFFICIENCIES",
    "RunFilter",
    "RunRecord",
    "child_runs",
    "delete_for_good_in",
    "delete_run",
    "delete_run_in",
    "duration_in",
    "find_run",
    "has_run",
    "insert_rows_in",
    "insert_run",
    "insert_run_in",
    "list_runs",
    "list_trial_groups",
    "mean_efficiencies",
    "read_record",
    "stored_totals",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Filter of runs; None means any.

    Attributes:
        name: may contain `*` for any text.
        tags: maps a key to the value it must have, or None for any value.
        since_wall_s: started at this time of day or later.
        saving: only runs that may have a record of `wattloop run --save`.
        trials: False leaves out the runs of sweeps and searches; see `list_trial_groups`.
    """

    name: str | None = None
    status: str | None = None
    tags: Mapping[str, str | None] = field(default_factory=dict)
    host: str | None = None
    job: str | None = None
    since_wall_s: float | None = None
    saving: bool = False
    trials: bool = True


def insert_run(store: Store, record: RunRecord) -> bool:
    """Insert a run; False when it exists already."""
    with store.writing() as connection:
        return insert_run_in(connection, record)


def insert_run_in(connection: Connection, record: RunRecord) -> bool:
    """Insert a run within the caller's transaction."""
    if has_run(connection, record.run_id):
        return False
    job_key = job_key_in(connection, record)
    insert_rows_in(connection, record_rows(record, job_key))
    refresh_job_in(connection, job_key)
    return True


def insert_rows_in(connection: Connection, rows: Mapping[str, list[dict[str, Any]]]) -> None:
    for table, values in rows.items():
        if values:
            connection.execute(insert(metadata.tables[table]), values)


def has_run(connection: Connection, run_id: str) -> bool:
    """Return True if a run with exactly this identifier is in the store."""
    return (
        connection.execute(select(runs.c.run_id).where(runs.c.run_id == run_id)).first() is not None
    )


def find_run(store: Store, reference: str, *, by_name: bool = False) -> RunRecord:
    """Find the run with this identifier, the only one that begins with it, or the `last` one.

    Of a program that measures itself below `wattloop run`, or of the ranks of a job, the last is
    the one that counted.

    With `by_name`, a text that begins no identifier is a name, of which the newest run is
    meant; not for what removes runs.
    """
    with store.reading() as connection:
        query = select(runs.c.body)
        # a full identifier is looked up; beginnings are searched among all runs
        whole = connection.execute(query.where(runs.c.run_id == reference)).scalar()
        if whole is not None:
            return read_record(whole)
        if reference == "last":
            query = _newest_first(query).limit(1)
        else:
            # compared by substring: LIKE would read '%' and '_' as patterns
            begins = func.substr(runs.c.run_id, 1, len(reference)) == reference
            query = query.where(begins).order_by(func.length(runs.c.run_id)).limit(10)
        found = [read_record(body) for (body,) in connection.execute(query)]
    if by_name and reference and not found:
        found = named_runs(store, reference, 1)
    if not reference or not found:
        raise RunNotFound(_not_found(store, reference))
    if len(found) > 1:
        several = ", ".join(sorted(record.run_id for record in found))
        raise RunNotFound(f"{reference!r} could be any of {several}; give more of it")
    return _counting(store, found[0]) if reference == "last" else found[0]


EFFICIENCIES = {"cpu": "cpu_efficiency", "gpu": "gpu_efficiency", "node": "global_efficiency"}
"""Name in the accounting of a run -> column of a table of trials."""


def mean_efficiencies(
    store: Store, trials: Sequence[Sequence[str]]
) -> list[dict[str, float | None]]:
    """Return energy / (power limit x time) of CPUs, GPUs and both, of the runs of each trial."""
    wanted = sorted({run_id for run_ids in trials for run_id in run_ids})
    known: dict[str, tuple[float, dict[str, float]]] = {}
    for start in range(0, len(wanted), 500):
        query = select(runs.c.run_id, runs.c.duration_s, runs.c.body).where(
            runs.c.run_id.in_(wanted[start : start + 500])
        )
        with store.reading() as connection:
            for run_id, duration_s, body in connection.execute(query):
                accounting = json.loads(body).get("accounting") or {}
                found = {e["name"]: e["value"] for e in accounting.get("efficiencies") or ()}
                known[run_id] = duration_s or 0.0, found
    rows = []
    for run_ids in trials:
        parts = [known[run_id] for run_id in run_ids if run_id in known]
        row: dict[str, float | None] = {}
        for name, column in EFFICIENCIES.items():
            shares = [(lasted_s, found[name]) for lasted_s, found in parts if name in found]
            total_s = sum(lasted_s for lasted_s, _ in shares)
            row[column] = sum(s * value for s, value in shares) / total_s if total_s else None
        rows.append(row)
    return rows


def list_runs(
    store: Store, wanted: RunFilter | None = None, limit: int | None = None
) -> list[RunRecord]:
    wanted = wanted or RunFilter()
    conditions = _conditions(wanted)
    if not wanted.trials and can_fold(store):
        conditions.append(~is_trial_run())
    query = _newest_first(select(runs.c.body).where(*conditions))
    if limit is not None:
        query = query.limit(limit)
    with store.reading() as connection:
        return [read_record(body) for (body,) in connection.execute(query)]


def named_runs(store: Store, name: str, limit: int) -> list[RunRecord]:
    """Return the newest runs with exactly this name."""
    query = _newest_first(select(runs.c.body).where(runs.c.name == name)).limit(limit)
    with store.reading() as connection:
        return [read_record(body) for body in connection.execute(query).scalars()]


def count_named(store: Store, name: str) -> int:
    """Return how many runs have exactly this name."""
    query = select(func.count()).select_from(runs).where(runs.c.name == name)
    with store.reading() as connection:
        return int(connection.execute(query).scalar_one())


class Tariff(NamedTuple):
    """Price of a kWh, and who states it."""

    per_kwh: float | None
    currency: str
    source: str


TARIFF_RUNS = 20
"""Runs that are searched for a tariff."""


def known_tariff(store: Store, settings: Settings) -> Tariff:
    """Return the tariff of the settings, else that of the newest run that has one."""
    if settings.tariff_per_kwh is not None:
        source = settings.sources.get("tariff_per_kwh", "settings")
        return Tariff(settings.tariff_per_kwh, settings.currency, source)
    for record in list_runs(store, limit=TARIFF_RUNS):
        cost = (record.accounting or {}).get("cost") or {}
        if isinstance(cost.get("tariff_per_kwh"), int | float):
            currency = str(cost.get("currency") or "")
            return Tariff(float(cost["tariff_per_kwh"]), currency, "the newest run")
    return Tariff(None, "", "")


def list_trial_groups(store: Store, wanted: RunFilter | None = None) -> list[TrialGroup]:
    """Return the experiments that `list_runs` leaves out without `trials`, newest first."""
    return run_groups(store, _conditions(wanted or RunFilter()))


def child_runs(store: Store, run_id: str) -> list[RunRecord]:
    """Return runs that programs measured themselves inside this run of `wattloop run`."""
    query = _newest_first(select(runs.c.body).where(runs.c.parent_run_id == run_id))
    with store.reading() as connection:
        return [read_record(body) for (body,) in connection.execute(query)]


def delete_run(store: Store, run_id: str) -> bool:
    """Delete a run with its windows, steps and samples; False when it does not exist."""
    with store.writing() as connection:
        return delete_for_good_in(connection, run_id)


def delete_for_good_in(connection: Connection, run_id: str) -> bool:
    """Delete a run within the caller's transaction; `stored_totals` knows its joules ever after."""
    lock_job_in(connection, deleted_totals.name)
    for row in connection.execute(_totals(runs.c.run_id == run_id)).mappings():
        values = {name: row[name] or 0.0 for name in TOTALS}
        mine = [deleted_totals.c[name] == row[name] for name in TOTALS_BY]
        added = {name: deleted_totals.c[name] + value for name, value in values.items()}
        change = update(deleted_totals).where(*mine).values(added)
        if not connection.execute(change).rowcount:
            own = {name: row[name] for name in TOTALS_BY}
            connection.execute(insert(deleted_totals).values(own | values))
    return delete_run_in(connection, run_id)


def delete_run_in(connection: Connection, run_id: str) -> bool:
    """Delete a run that another version of it replaces, within the caller's transaction."""
    job_key = connection.execute(select(runs.c.job_key).where(runs.c.run_id == run_id)).scalar()
    is_gone = connection.execute(delete(runs).where(runs.c.run_id == run_id)).rowcount > 0
    if job_key is not None:
        refresh_job_in(connection, job_key)
    return is_gone


TOTALS_BY = ("cluster", "project", "host", "provenance")
TOTALS = ("runs", "energy_j", "facility_j", "carbon_g")


def stored_totals(store: Store) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return `TOTALS` by `TOTALS_BY`: of the runs, and of all that ever were, also deleted ones.

    A figure that no run has is None, or zero of all that ever were. What another run counts, what
    runs within a run measured and what is not believed is left out.
    """
    with store.reading() as connection:
        query: Any = _totals().add_columns(literal(0).label("deleted"))
        # a store that cannot be written may be older than the table
        if not store.read_only or inspect(connection).has_table(deleted_totals.name):
            # one statement sees a run either here or there
            query = union_all(query, select(deleted_totals, literal(1)))
        found = [dict(row) for row in connection.execute(query).mappings()]
    now = [row for row in found if not row.pop("deleted")]
    ever: dict[tuple[str, ...], dict[str, Any]] = {}
    for row in found:
        by = {name: row[name] for name in TOTALS_BY}
        known = ever.setdefault(tuple(by.values()), by | dict.fromkeys(TOTALS, 0.0))
        known |= {name: known[name] + (row[name] or 0.0) for name in TOTALS}
    return now, list(ever.values())


def _totals(*conditions: ColumnElement[bool]) -> Select[Any]:
    by = (run_facts.c.cluster, run_facts.c.project, runs.c.host, run_facts.c.provenance)
    return (
        select(
            *by,
            func.count().label("runs"),
            func.sum(runs.c.energy_j).label("energy_j"),
            func.sum(run_facts.c.facility_j).label("facility_j"),
            func.sum(run_facts.c.carbon_g).label("carbon_g"),
        )
        .select_from(runs.join(run_facts, run_facts.c.run_id == runs.c.run_id))
        .where(runs.c.counted, runs.c.parent_run_id.is_(None), runs.c.quarantine.is_(None))
        .where(*conditions)
        .group_by(*by)
    )


def duration_in(connection: Connection, run_id: str) -> float | None:
    """Return the duration of the stored run with this identifier in seconds; None when it does not
    exist.
    """
    found = connection.execute(select(runs.c.duration_s).where(runs.c.run_id == run_id)).first()
    return None if found is None else found[0] or 0.0


def _conditions(wanted: RunFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if wanted.name is not None:
        pattern = wanted.name.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        conditions.append(runs.c.name.like(pattern.replace("*", "%"), escape="\\"))
    if wanted.status is not None:
        conditions.append(runs.c.status == str(wanted.status))
    if wanted.host is not None:
        conditions.append(runs.c.host == wanted.host)
    if wanted.job is not None:
        conditions.append(runs.c.job_id == wanted.job)
    if wanted.since_wall_s is not None:
        conditions.append(runs.c.started_wall_s >= wanted.since_wall_s)
    if wanted.saving:  # few runs have one: others are not worth parsing
        conditions.append(runs.c.body.like('%"saving":{%'))
    for key, value in wanted.tags.items():
        tagged = select(run_tags.c.run_id).where(run_tags.c.key == key)
        if value is not None:
            tagged = tagged.where(run_tags.c.value == value)
        conditions.append(runs.c.run_id.in_(tagged))
    return conditions


def _newest_first(query: Select[Any]) -> Select[Any]:
    return query.order_by(runs.c.started_wall_s.desc(), runs.c.run_id.desc())


def _counting(store: Store, record: RunRecord) -> RunRecord:
    """Return the run that counted the devices of this one, where another did and is stored."""
    if record.counted or record.counted_by is None:
        return record
    with store.reading() as connection:
        query = select(runs.c.body).where(runs.c.run_id == record.counted_by)
        other = connection.execute(query).scalar()
    return record if other is None else read_record(other)


def _not_found(store: Store, reference: str) -> str:
    with store.reading() as connection:
        count = connection.execute(select(func.count()).select_from(runs)).scalar_one()
    if not count:
        return f"{store.where}: no runs yet; try: wattloop run -- python train.py"
    if named := named_runs(store, reference, 1):
        return (
            f"{reference!r} is a name, and identifiers are asked for; the newest run of that name "
            f"is {named[0].run_id}"
        )
    return (
        f"no run {reference!r} among the {count} in {store.where}; see them with: "
        "wattloop runs list"
    )


INCOMING = "incoming"
"""Folder below the journals for those of other machines; see `ingest`."""
QUIET_S = 60.0
"""A run of another machine is live while its last data is younger than this."""


def live_runs(store: Store) -> list[RunRecord]:
    """Return live runs, newest first; without a result, which only ended runs have."""
    return [record for record, _ in live_journals(store)]


def live_journals(store: Store) -> list[tuple[RunRecord, Path]]:
    """Return live runs with their journals, newest first."""
    found = [(record, path) for path in _journals(store) if (record := _record(path)) is not None]
    return sorted(found, key=lambda one: one[0].started_wall_s, reverse=True)


def live_journal(store: Store, run_id: str) -> tuple[RunRecord, Path] | None:
    """Return a live run and its journal; None when none has that name."""
    if "/" in run_id or run_id.startswith("."):
        return None
    own = store.journals / f"{run_id}.journal"
    for path in (own, store.journals / INCOMING / f"{run_id}.part"):
        record = _record(path)
        if record is not None and record.run_id == run_id:
            return record, path
    return None


def is_live(path: Path) -> bool:
    """Return True if a process writes it, or another machine sends it."""
    try:
        if path.suffix == ".part":
            return time.time() - path.stat().st_mtime < QUIET_S
        # a reader's lock on an empty journal could come before its writer's own
        return path.stat().st_size > 0 and journal_is_live(path)
    except OSError:  # imported into the store and removed
        return False


def _journals(store: Store) -> Iterator[Path]:
    yield from store.journals.glob("*.journal")
    yield from (store.journals / INCOMING).glob("*.part")


def _record(path: Path) -> RunRecord | None:
    if not is_live(path):
        return None
    try:
        return _read(path, path.stat().st_ino)
    except (OSError, LookupError, TypeError, ValueError):
        return None


@lru_cache(maxsize=4_096)  # a header never changes, and a page of jobs asks for all of them
def _read(path: Path, inode: int) -> RunRecord:
    """Parse a header; raises where it is not there yet, which is not cached."""
    del inode  # of another file with this path
    header = read_header(path)
    if header is None:
        raise LookupError(f"{path}: no header")
    fault = header_fault(header)
    if fault:
        raise ValueError(fault)
    known = {key: value for key, value in header.items() if value is not None}
    return RunRecord.from_dict({**known, "status": RunStatus.RUNNING.value})
