"""Queries on jobs: pages, filters and totals by the database, with their runs and journals."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Select,
    String,
    Text,
    collate,
    func,
    insert,
    or_,
    select,
    update,
)

from wattloop.core.errors import RunNotFound
from wattloop.core.records import Provenance, Scope
from wattloop.store.database import Store
from wattloop.store.job_rows import job_key_in, refresh_job_in
from wattloop.store.journal import Journal, SampleBlock
from wattloop.store.run_record import UNALLOCATED_KIND, facts_row, read_record
from wattloop.store.runs import RunFilter, RunRecord, find_run, list_runs
from wattloop.store.sample_queries import read_samples
from wattloop.store.samples import series_of
from wattloop.store.schema import experiments, jobs, run_facts, run_tags, runs
from wattloop.store.trial_groups import TRIAL_TAGS, TrialGroup, is_trial_job, job_groups, trial_runs

LOOK_BACK = 1_000
"""Number of runs that are searched for the last job."""


@dataclass(frozen=True, slots=True)
class JobMembers:
    """The runs of one job."""

    name: str
    records: tuple[RunRecord, ...]
    earlier: int
    """Number of earlier jobs with the same name."""


def find_job_members(store: Store, reference: str = "last") -> JobMembers:
    """Find the job of this name, the one that a run belongs to, or the `last` one.

    Launchers give every job the same name unless told otherwise, so runs of one name that do not
    overlap in time are different jobs; the newest is meant.

    Raises:
        RunNotFound: no such job or run, or a run that is not part of any job.
    """
    anchor = _anchor(store, reference)
    # a run without a job names the job of those that it started
    name = str(anchor.job["id"]) if anchor.job else anchor.run_id
    members = list_runs(store, RunFilter(job=name)) + _launching_run(store, name)
    attempts = _attempts(members or [anchor])
    mine = next(a for a in attempts if any(r.run_id == anchor.run_id for r in a))
    if len(mine) == 1 and not mine[0].job:
        raise RunNotFound(
            f"run {anchor.run_id} is not part of a job; see it with: wattloop runs show "
            f"{anchor.run_id}"
        )
    return JobMembers(name, tuple(mine), earlier=attempts.index(mine))


def stored_journal(store: Store, record: RunRecord) -> Journal:
    """Return the readings of a stored run, without signals and events."""
    journal = Journal(Path(record.run_id), {"feeds": record.feeds})
    for index, feed in enumerate(record.feeds):
        series = [s for s in series_of(record.feeds) if s.feed == index]
        columns = [read_samples(store, record.run_id, s) for s in series]
        if columns and len(columns[0][0]):
            times_s = columns[0][0]
            values = array("d", bytes(8 * len(times_s) * len(columns)))
            for i, (_, column) in enumerate(columns):
                values[i :: len(columns)] = column
            journal.blocks.append(SampleBlock(index, len(feed["domains"]), times_s, values))
    return journal


def _anchor(store: Store, reference: str) -> RunRecord:
    named = list_runs(store, RunFilter(job=reference))
    if named:
        return named[0]
    if reference == "last":
        recent = list_runs(store, limit=LOOK_BACK)
        return next((r for r in recent if r.job), None) or find_run(store, "last")
    return find_run(store, reference)


def _launching_run(store: Store, name: str) -> list[RunRecord]:
    """Return the run that started the others, where the job is named after it."""
    try:
        record = find_run(store, name)
    except RunNotFound:
        return []
    return [record] if record.run_id == name and not record.job else []


def _attempts(members: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Group runs that overlap in time, directly or through others; the oldest first."""
    attempts: list[list[RunRecord]] = []
    until_s = -math.inf
    for record in sorted(members, key=lambda r: r.started_wall_s):
        if record.started_wall_s > until_s:
            attempts.append([])
        attempts[-1].append(record)
        ended_s = record.started_s if record.ended_s is None else record.ended_s
        until_s = max(until_s, record.started_wall_s + ended_s - record.started_s)
    return attempts


COLUMNS = (*jobs.c, jobs.c.first_run_id.label("run_id"))
GRID_J: ColumnElement[Any] = func.coalesce(jobs.c.facility_j, jobs.c.energy_j)
"""Energy that is paid for: with the room's, where it is known."""
SORTS: Mapping[str, ColumnElement[Any]] = {
    "started": jobs.c.started_wall_s,
    "duration": jobs.c.duration_s,
    "energy": jobs.c.energy_j,
    "cost": GRID_J,
    "carbon": jobs.c.carbon_g,
    **{n: jobs.c[n] for n in ("name", "cluster", "partition", "project", "label", "status")},
    "nodes": jobs.c.nodes,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Filter of jobs; empty or None is any.

    Attributes:
        text: is in the name or the identifier of the job or its first run.
        host: one of its nodes.
        since_wall_s, until_wall_s: begun at or after, before.
        ran: jobs that began earlier and ran at `since_wall_s` match, too.
        shortest_s, longest_s: duration at least, at most.
        exclusive: had its nodes for itself.
        kind: of its runs; what no job used (`unallocated`) is left out unless asked for.
        experiment: identifier of the sweep or search whose trials are meant.
    """

    text: str = ""
    status: str = ""
    host: str = ""
    cluster: str = ""
    partition: str = ""
    project: str = ""
    label: str = ""
    since_wall_s: float | None = None
    until_wall_s: float | None = None
    ran: bool = False
    shortest_s: float | None = None
    longest_s: float | None = None
    exclusive: bool | None = None
    kind: str = ""
    experiment: str = ""


@dataclass(frozen=True, slots=True)
class JobTotals:
    """Sums over all matching jobs that count, each with the number of jobs that have a value."""

    runs: int
    counted: int
    energy_j: float | None
    facility_j: float | None
    carbon_g: float | None
    with_energy: int
    with_facility: int
    with_carbon: int
    quarantined: int
    """Quarantined runs, which are in none of these sums."""
    measured: int
    """Jobs with an energy of which every part was read from a sensor of the machine."""


def job_page(
    store: Store,
    wanted: JobFilter | None = None,
    *,
    sort: str = "started",
    descending: bool = True,
    offset: int = 0,
    limit: int = 25,
) -> list[dict[str, Any]]:
    """Return a page of the matching jobs: see the table `jobs` for the columns."""
    return _job_page(store, _conditions(wanted or JobFilter()), sort, descending, offset, limit)


def folded_job_page(
    store: Store,
    wanted: JobFilter | None = None,
    groups: Sequence[TrialGroup] = (),
    *,
    sort: str = "started",
    descending: bool = True,
    offset: int = 0,
    limit: int = 25,
) -> list[dict[str, Any] | TrialGroup]:
    """Return a page of jobs without trials, with the groups of `matching_groups` in their place."""
    # Of the rows before the page at most all groups are no jobs: jobs that are further in front
    # than that cannot be on it.
    skipped = max(0, offset - len(groups))
    conditions = [*_conditions(wanted or JobFilter()), ~is_trial_job()]
    most = offset - skipped + limit
    found = _job_page(store, conditions, sort, descending, skipped, most)
    column = SORTS[sort]
    names = [column.name] if isinstance(column, Column) else ["facility_j", "energy_j"]

    def key(row: dict[str, Any] | TrialGroup) -> Any:
        fields = row if isinstance(row, dict) else {n: getattr(row, n, "") for n in names}
        return next((fields[name] for name in names if fields[name] is not None), None)

    rows: list[dict[str, Any] | TrialGroup] = [*groups, *found]
    known = [row for row in rows if key(row) is not None]
    known.sort(key=key, reverse=descending)
    unknown = [row for row in rows if key(row) is None]
    return [*known, *unknown][offset - skipped : most]


def matching_groups(store: Store, wanted: JobFilter | None = None) -> list[TrialGroup]:
    """Return experiments with a matching trial, or with the text in their name, newest first."""
    return job_groups(store, _conditions(wanted or JobFilter(), or_named=experiments.c.name))


def count_trials(store: Store, wanted: JobFilter | None = None) -> int:
    """Return the number of matching jobs that `folded_job_page` leaves out."""
    trials = jobs.c.first_run_id.in_(trial_runs())
    query = select(func.count()).where(*_conditions(wanted or JobFilter()), trials)
    with store.reading() as connection:
        return int(connection.execute(query.select_from(jobs)).scalar_one())


def _job_page(
    store: Store,
    conditions: Sequence[ColumnElement[bool]],
    sort: str,
    descending: bool,
    offset: int,
    limit: int,
) -> list[dict[str, Any]]:
    column = SORTS[sort]
    by: ColumnElement[Any] = column
    if store.place.is_server and isinstance(column.type, String | Text):
        by = collate(column, "C")  # as Python and SQLite sort
    order = by.desc() if descending else by.asc()
    # PostgreSQL uses no index for an order with NULLS LAST on a column without nulls
    if not isinstance(column, Column) or column.nullable:
        order = order.nulls_last()
    query = select(*COLUMNS).where(*conditions)
    query = query.order_by(order, jobs.c.first_run_id.desc()).offset(offset).limit(limit)
    with store.reading() as connection:
        return [dict(row._mapping) for row in connection.execute(query)]


def job_totals(store: Store, wanted: JobFilter | None = None) -> JobTotals:
    """Return totals of all matching jobs; the database reads each of them."""
    is_measured = jobs.c.provenance == Provenance.MEASURED.value
    summed = (jobs.c.energy_j, jobs.c.facility_j, jobs.c.carbon_g)
    query = select(
        func.count(),
        func.count().filter(jobs.c.in_totals),
        *(func.sum(column).filter(jobs.c.in_totals) for column in summed),
        *(func.count(column).filter(jobs.c.in_totals) for column in summed),
        func.coalesce(func.sum(jobs.c.quarantined), 0),
        func.count(jobs.c.energy_j).filter(jobs.c.in_totals, is_measured),
    ).where(*_conditions(wanted or JobFilter()))
    with store.reading() as connection:
        return JobTotals(*connection.execute(query).one())


LONGEST_JOB_S = 31 * 86_400.0
"""Jobs that began longer before a period are not looked for in it."""


class SpentEnergy(NamedTuple):
    """Energy of one job that counts in totals, and when it was used."""

    begin_wall_s: float
    end_wall_s: float
    energy_j: float
    facility_j: float | None
    carbon_g: float | None
    project: str
    user: str
    is_measured: bool
    in_job: bool


def spent_energies(store: Store, since_wall_s: float) -> list[SpentEnergy]:
    """Return the jobs that used energy since a time, also for no job of a user."""
    begun = jobs.c.started_wall_s
    length = func.coalesce(jobs.c.duration_s, 0.0)
    query = select(
        *(begun, begun + length, jobs.c.energy_j, jobs.c.facility_j, jobs.c.carbon_g),
        *(jobs.c.project, jobs.c.user_name, jobs.c.provenance == Provenance.MEASURED.value),
        jobs.c.kind != UNALLOCATED_KIND,
    ).where(
        jobs.c.in_totals,
        jobs.c.energy_j.is_not(None),
        begun >= since_wall_s - LONGEST_JOB_S,
        begun + length >= since_wall_s,
    )
    with store.reading() as connection:
        return [SpentEnergy(*row) for row in connection.execute(query)]


class NamedConsumer(NamedTuple):
    """Jobs of one name that count in totals."""

    name: str
    jobs: int
    energy_j: float
    newest_run_id: str


def largest_names(store: Store, since_wall_s: float, limit: int) -> list[NamedConsumer]:
    """Return names by the energy of their jobs since a time, without trials."""
    energy_j = func.sum(jobs.c.energy_j)
    query = (
        select(jobs.c.name, func.count(), energy_j, func.max(jobs.c.first_run_id))
        .where(*_conditions(JobFilter(since_wall_s=since_wall_s)), ~is_trial_job())
        .where(jobs.c.in_totals, jobs.c.energy_j > 0, jobs.c.name != "")
        .group_by(jobs.c.name)
        .order_by(energy_j.desc())
        .limit(limit)
    )
    with store.reading() as connection:
        return [NamedConsumer(*row) for row in connection.execute(query)]


def newest_runs(store: Store, since_wall_s: float, limit: int) -> list[RunRecord]:
    """Return the newest run of each host since a time, by host."""
    newest = (
        select(runs.c.host, func.max(runs.c.started_wall_s).label("started"))
        .where(runs.c.started_wall_s >= since_wall_s, runs.c.host != "")
        .group_by(runs.c.host)
        .order_by(runs.c.host)
        .limit(limit)
        .subquery()
    )
    same = (runs.c.host == newest.c.host) & (runs.c.started_wall_s == newest.c.started)
    query = select(runs.c.host, runs.c.body).join(newest, same).order_by(runs.c.host)
    with store.reading() as connection:
        found = {str(host): str(body) for host, body in connection.execute(query)}
    return [read_record(body) for body in found.values()]


def job_with_runs(store: Store, job_key: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return a job, and the measurement of each of its runs, by host; `gpu_energy_j` is of its GPUs
    alone.

    Raises:
        RunNotFound: the job does not exist.
    """
    joined = runs.outerjoin(run_facts, run_facts.c.run_id == runs.c.run_id)
    facts = (run_facts.c.label, run_facts.c.insights, run_facts.c.provenance)
    query = select(*runs.c, *facts).select_from(joined).where(runs.c.job_key == job_key)
    with store.reading() as connection:
        row = connection.execute(select(*COLUMNS).where(jobs.c.job_key == job_key)).first()
        found = connection.execute(query.order_by(runs.c.host, runs.c.started_wall_s))
        members = [_with_gpus(dict(one._mapping)) for one in found]
    if row is None:
        raise RunNotFound(f"{store.where}: no job {job_key!r}; see them with: wattloop serve")
    return dict(row._mapping), members


def _with_gpus(run: dict[str, Any]) -> dict[str, Any]:
    result = read_record(run.pop("body")).result
    return {**run, "gpu_energy_j": None if result is None else result.scope_energy_j(Scope.GPU)}


def known_values(store: Store, name: str) -> list[str]:
    """Return the values of a column: choices for a filter."""
    # a job has several hosts: they are in its runs
    column = runs.c.host if name == "host" else jobs.c[name]
    query = select(column).distinct().where(column != "").order_by(column).limit(200)
    with store.reading() as connection:
        return [str(value) for value in connection.execute(query).scalars()]


def _conditions(
    wanted: JobFilter, or_named: ColumnElement[str] | None = None
) -> list[ColumnElement[bool]]:
    kind = jobs.c.kind
    found = [kind == wanted.kind if wanted.kind else kind != UNALLOCATED_KIND]
    if wanted.text:
        text = wanted.text.lower()
        named: list[ColumnElement[str]] = [jobs.c.name, jobs.c.first_run_id, jobs.c.job_key]
        named += [] if or_named is None else [or_named]
        found.append(or_(*(func.lower(c).contains(text, autoescape=True) for c in named)))
    for name in ("status", "cluster", "partition", "project", "label"):
        if getattr(wanted, name):
            found.append(jobs.c[name] == getattr(wanted, name))
    if wanted.host:
        on_host = select(runs.c.job_key).where(runs.c.host == wanted.host)
        found.append(jobs.c.job_key.in_(on_host))
    if wanted.experiment:
        tagged = select(run_tags.c.run_id).where(
            run_tags.c.key.in_(TRIAL_TAGS), run_tags.c.value == wanted.experiment
        )
        found.append(jobs.c.first_run_id.in_(tagged))
    if wanted.exclusive is not None:
        found.append(jobs.c.exclusive.is_(wanted.exclusive))
    if wanted.since_wall_s is not None:
        longest_s = LONGEST_JOB_S if wanted.ran else 0.0
        found.append(jobs.c.started_wall_s >= wanted.since_wall_s - longest_s)
        if wanted.ran:
            ended = jobs.c.started_wall_s + func.coalesce(jobs.c.duration_s, 0.0)
            found.append(ended >= wanted.since_wall_s)
    if wanted.until_wall_s is not None:
        found.append(jobs.c.started_wall_s < wanted.until_wall_s)
    if wanted.shortest_s is not None:
        found.append(jobs.c.duration_s >= wanted.shortest_s)
    if wanted.longest_s is not None:
        found.append(jobs.c.duration_s <= wanted.longest_s)
    return found


AT_ONCE = 500


def fill_jobs(store: Store) -> int:
    """Insert jobs for runs that were stored before jobs had rows; return the number of runs."""
    query = select(runs.c.run_id, runs.c.body).where(runs.c.job_key.is_(None))

    def fill(connection: Connection, found: Sequence[Any]) -> Iterator[str]:
        for run_id, body in found:
            record = read_record(body)
            yield (job_key := job_key_in(connection, record))
            facts = facts_row(record)
            connection.execute(update(runs).where(runs.c.run_id == run_id).values(job_key=job_key))
            connection.execute(
                update(run_facts)
                .where(run_facts.c.run_id == run_id)
                .values(efficiency=facts["efficiency"], job_nodes=facts["job_nodes"])
            )

    return _fill(store, query.order_by(runs.c.started_wall_s), fill)


def fill_run_facts(store: Store) -> int:
    """Fill the columns of runs from earlier releases; return the number of runs."""
    query = (
        select(runs.c.body, runs.c.job_key)
        .outerjoin(run_facts, run_facts.c.run_id == runs.c.run_id)
        .where(run_facts.c.run_id.is_(None))
    )

    def fill(connection: Connection, found: Sequence[Any]) -> Iterator[str]:
        connection.execute(insert(run_facts), [facts_row(read_record(body)) for body, _ in found])
        yield from (key for _, key in found if key is not None)

    return _fill(store, query, fill)


def _fill(
    store: Store, query: Select[Any], fill: Callable[[Connection, Sequence[Any]], Iterable[str]]
) -> int:
    """Pass the rows that `query` finds to `fill`, some at a time, until none is left; refresh the
    jobs whose keys it returns.
    """
    filled = 0
    while True:
        with store.writing() as connection:
            found = connection.execute(query.limit(AT_ONCE)).all()
            if not found:
                return filled
            for job_key in sorted(set(fill(connection, found))):  # one order prevents deadlocks
                refresh_job_in(connection, job_key)
        filled += len(found)
