"""Runs in pages, filtered and sorted by the database, with totals of all that match."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, insert, select

from wattloop.store.database import Store
from wattloop.store.run_facts import facts_of
from wattloop.store.runs import read_record
from wattloop.store.schema import run_facts, runs

__all__ = ["JobFilter", "JobPage", "JobTotals", "fill_run_facts", "job_page", "known_values"]

AT_ONCE = 500
COLUMNS = (
    *(runs.c.run_id, runs.c.name, runs.c.status, runs.c.host, runs.c.user_name, runs.c.job_id),
    *(runs.c.started_wall_s, runs.c.duration_s, runs.c.energy_j, runs.c.uncertainty_j),
    runs.c.counted,
    *(run_facts.c.cluster, run_facts.c.partition, run_facts.c.project, run_facts.c.exclusive),
    *(run_facts.c.device, run_facts.c.label, run_facts.c.insights, run_facts.c.provenance),
    *(run_facts.c.complete, run_facts.c.facility_j, run_facts.c.carbon_g),
)
SORTS: Mapping[str, ColumnElement[Any]] = {
    "started": runs.c.started_wall_s,
    "name": runs.c.name,
    "duration": runs.c.duration_s,
    "energy": runs.c.energy_j,
    "carbon": run_facts.c.carbon_g,
    "cluster": run_facts.c.cluster,
    "partition": run_facts.c.partition,
    "project": run_facts.c.project,
    "label": run_facts.c.label,
    "status": runs.c.status,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which runs; empty or None is any.

    Attributes:
        text: is in the name or the identifier.
        since_wall_s, until_wall_s: begun at or after, before.
        shortest_s, longest_s: duration at least, at most.
        exclusive: had its nodes for itself.
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


@dataclass(frozen=True, slots=True)
class JobTotals:
    """Sums over all matching runs that count; each with how many runs know it."""

    runs: int
    counted: int
    energy_j: float | None
    facility_j: float | None
    carbon_g: float | None
    with_energy: int
    with_facility: int
    with_carbon: int


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some of the matching runs, and the totals of all."""

    rows: tuple[dict[str, Any], ...]
    totals: JobTotals


def job_page(
    store: Store,
    wanted: JobFilter | None = None,
    *,
    sort: str = "started",
    descending: bool = True,
    offset: int = 0,
    limit: int = 25,
) -> JobPage:
    """One page of runs."""
    conditions = _conditions(wanted or JobFilter())
    joined = runs.outerjoin(run_facts, run_facts.c.run_id == runs.c.run_id)
    column = SORTS[sort]
    order = column.desc().nulls_last() if descending else column.asc().nulls_last()
    query = select(*COLUMNS).select_from(joined).where(*conditions)
    query = query.order_by(order, runs.c.run_id.desc()).offset(offset).limit(limit)
    with store.reading() as connection:
        rows = tuple(dict(row._mapping) for row in connection.execute(query))
        totals = JobTotals(*connection.execute(_totals(joined, conditions)).one())
    return JobPage(rows, totals)


def known_values(store: Store, name: str) -> list[str]:
    """What a column holds: choices for a filter."""
    column = run_facts.c[name] if name in run_facts.c else runs.c[name]
    query = select(column).distinct().where(column != "").order_by(column).limit(200)
    with store.reading() as connection:
        return [str(value) for value in connection.execute(query).scalars()]


def fill_run_facts(store: Store) -> int:
    """Runs kept by earlier releases get their columns; how many there were."""
    query = (
        select(runs.c.body)
        .outerjoin(run_facts, run_facts.c.run_id == runs.c.run_id)
        .where(run_facts.c.run_id.is_(None))
        .limit(AT_ONCE)
    )
    filled = 0
    while True:
        with store.writing() as connection:
            bodies = connection.execute(query).scalars().all()
            if not bodies:
                return filled
            connection.execute(insert(run_facts), [facts_of(read_record(b)) for b in bodies])
        filled += len(bodies)


def _totals(joined: Any, conditions: list[ColumnElement[bool]]) -> Select[Any]:
    counts = and_(runs.c.counted, runs.c.parent_run_id.is_(None))

    def of(column: ColumnElement[Any]) -> ColumnElement[Any]:
        return func.sum(column).filter(counts)

    def known(column: ColumnElement[Any]) -> ColumnElement[Any]:
        return func.count(column).filter(counts)

    return (
        select(
            func.count(),
            func.count().filter(counts),
            of(runs.c.energy_j),
            of(run_facts.c.facility_j),
            of(run_facts.c.carbon_g),
            known(runs.c.energy_j),
            known(run_facts.c.facility_j),
            known(run_facts.c.carbon_g),
        )
        .select_from(joined)
        .where(*conditions)
    )


def _conditions(wanted: JobFilter) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if wanted.text:
        text = wanted.text.lower()
        found.append(
            func.lower(runs.c.name).contains(text, autoescape=True)
            | func.lower(runs.c.run_id).contains(text, autoescape=True)
        )
    for name in ("status", "host"):
        if getattr(wanted, name):
            found.append(runs.c[name] == getattr(wanted, name))
    for name in ("cluster", "partition", "project", "label"):
        if getattr(wanted, name):
            found.append(run_facts.c[name] == getattr(wanted, name))
    if wanted.exclusive is not None:
        found.append(run_facts.c.exclusive.is_(wanted.exclusive))
    if wanted.since_wall_s is not None:
        found.append(runs.c.started_wall_s >= wanted.since_wall_s)
    if wanted.until_wall_s is not None:
        found.append(runs.c.started_wall_s < wanted.until_wall_s)
    if wanted.shortest_s is not None:
        found.append(runs.c.duration_s >= wanted.shortest_s)
    if wanted.longest_s is not None:
        found.append(runs.c.duration_s <= wanted.longest_s)
    return found
