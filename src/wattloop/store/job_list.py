"""Jobs in pages, filtered and sorted by the database, with totals of all that match."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, ColumnElement, Select, func, or_, select

from wattloop.core.errors import RunNotFound
from wattloop.core.provenance import Provenance
from wattloop.core.records import Scope
from wattloop.store.database import Store
from wattloop.store.job_rows import UNALLOCATED_KIND
from wattloop.store.run_record import read_record
from wattloop.store.schema import jobs, run_facts, runs

__all__ = [
    "JobFilter",
    "JobTotals",
    "job_page",
    "job_totals",
    "job_with_runs",
    "known_values",
]

COLUMNS = (*jobs.c, jobs.c.first_run_id.label("run_id"))
SORTS: Mapping[str, Column[Any]] = {
    "started": jobs.c.started_wall_s,
    "name": jobs.c.name,
    "duration": jobs.c.duration_s,
    "energy": jobs.c.energy_j,
    "carbon": jobs.c.carbon_g,
    "cluster": jobs.c.cluster,
    "partition": jobs.c.partition,
    "project": jobs.c.project,
    "label": jobs.c.label,
    "status": jobs.c.status,
    "nodes": jobs.c.nodes,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs; empty or None is any.

    Attributes:
        text: is in the name or the identifier of the job or its first run.
        host: one of its nodes.
        since_wall_s, until_wall_s: begun at or after, before.
        shortest_s, longest_s: duration at least, at most.
        exclusive: had its nodes for itself.
        kind: of its runs; what no job used (`unallocated`) is left out unless asked for.
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
    shortest_s: float | None = None
    longest_s: float | None = None
    exclusive: bool | None = None
    kind: str = ""


@dataclass(frozen=True, slots=True)
class JobTotals:
    """Sums over all matching jobs that count; each with how many jobs know it."""

    runs: int
    counted: int
    energy_j: float | None
    facility_j: float | None
    carbon_g: float | None
    with_energy: int
    with_facility: int
    with_carbon: int
    quarantined: int
    """Runs whose figures are not believed, and in none of these sums."""
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
    """Some of the matching jobs: see the table `jobs` for what a row has."""
    column = SORTS[sort]
    order = column.desc() if descending else column.asc()
    if column.nullable:  # PostgreSQL takes no index for an order that says where no nulls go
        order = order.nulls_last()
    query = select(*COLUMNS).where(*_conditions(wanted or JobFilter()))
    query = query.order_by(order, jobs.c.first_run_id.desc()).offset(offset).limit(limit)
    with store.reading() as connection:
        return [dict(row._mapping) for row in connection.execute(query)]


def job_totals(store: Store, wanted: JobFilter | None = None) -> JobTotals:
    """Of all matching jobs; the database reads each of them for that."""
    with store.reading() as connection:
        query = _totals(_conditions(wanted or JobFilter()))
        return JobTotals(*connection.execute(query).one())


def job_with_runs(store: Store, job_key: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A job, and what each of its runs measured, by host; `gpu_energy_j` is of its GPUs alone.

    Raises:
        RunNotFound: there is no such job.
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
    """What a column holds: choices for a filter."""
    # of hosts a job has several: they are in its runs
    column = runs.c.host if name == "host" else jobs.c[name]
    query = select(column).distinct().where(column != "").order_by(column).limit(200)
    with store.reading() as connection:
        return [str(value) for value in connection.execute(query).scalars()]


def _totals(conditions: list[ColumnElement[bool]]) -> Select[Any]:
    def of(column: ColumnElement[Any]) -> ColumnElement[Any]:
        return func.sum(column).filter(jobs.c.in_totals)

    def known(column: ColumnElement[Any]) -> ColumnElement[Any]:
        return func.count(column).filter(jobs.c.in_totals)

    return select(
        func.count(),
        func.count().filter(jobs.c.in_totals),
        of(jobs.c.energy_j),
        of(jobs.c.facility_j),
        of(jobs.c.carbon_g),
        known(jobs.c.energy_j),
        known(jobs.c.facility_j),
        known(jobs.c.carbon_g),
        func.coalesce(func.sum(jobs.c.quarantined), 0),
        func.count(jobs.c.energy_j).filter(
            jobs.c.in_totals, jobs.c.provenance == Provenance.MEASURED.value
        ),
    ).where(*conditions)


def _conditions(wanted: JobFilter) -> list[ColumnElement[bool]]:
    kind = jobs.c.kind
    found = [kind == wanted.kind if wanted.kind else kind != UNALLOCATED_KIND]
    if wanted.text:
        text = wanted.text.lower()
        named = (jobs.c.name, jobs.c.first_run_id, jobs.c.job_key)
        found.append(or_(*(func.lower(c).contains(text, autoescape=True) for c in named)))
    for name in ("status", "cluster", "partition", "project", "label"):
        if getattr(wanted, name):
            found.append(jobs.c[name] == getattr(wanted, name))
    if wanted.host:
        on_host = select(runs.c.job_key).where(runs.c.host == wanted.host)
        found.append(jobs.c.job_key.in_(on_host))
    if wanted.exclusive is not None:
        found.append(jobs.c.exclusive.is_(wanted.exclusive))
    if wanted.since_wall_s is not None:
        found.append(jobs.c.started_wall_s >= wanted.since_wall_s)
    if wanted.until_wall_s is not None:
        found.append(jobs.c.started_wall_s < wanted.until_wall_s)
    if wanted.shortest_s is not None:
        found.append(jobs.c.duration_s >= wanted.shortest_s)
    if wanted.longest_s is not None:
        found.append(jobs.c.duration_s <= wanted.longest_s)
    return found
