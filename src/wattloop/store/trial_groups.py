"""Trials folded under their experiment: which runs are trials, and one row per experiment.

Runs that a sweep, a search or a cap finder measures carry its identifier as a tag. A run inside of
such a run belongs to it as well. Lists show one row per experiment instead of its trials; totals
stay sums over runs. A tag that names no stored experiment is a tag as any other.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, CompoundSelect, FromClause, exists, func, inspect, or_, select

from wattloop.core.records import Provenance
from wattloop.store.database import Store
from wattloop.store.schema import experiments, jobs, run_facts, run_tags, runs

TRIAL_TAGS = ("experiment", "search")
"""Tags of a trial's run that hold the identifier of its experiment."""
SHARED = ("host", "user_name", "project", "cluster", "partition")
"""Texts of a group that are those of its runs where all have the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialGroup:
    """An experiment with the sums of its measured runs.

    Attributes:
        status: as stored; `trials.lock.with_status_now` tells whether it still runs.
        runs: number of them that match.
        duration_s: from the beginning of the first to the end of the last.
        energy_j: of runs whose devices no other run counts; None where nothing is known.
        provenance: the weakest of them.
        host, user_name, project, cluster, partition: the value that all have, else empty.
    """

    experiment_id: str
    kind: str
    name: str
    status: str
    runs: int
    started_wall_s: float
    duration_s: float
    energy_j: float | None
    facility_j: float | None
    carbon_g: float | None
    provenance: str
    complete: bool
    host: str
    user_name: str
    project: str
    cluster: str
    partition: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def is_trial_run() -> ColumnElement[bool]:
    """Return the condition that a row of `runs` is a trial, or inside of one."""
    return or_(_tagged(runs.c.run_id), _tagged(runs.c.parent_run_id))


def is_trial_job() -> ColumnElement[bool]:
    """Return the condition that a row of `jobs` is a trial, or inside of one."""
    inside = exists().where(runs.c.run_id == jobs.c.first_run_id, _tagged(runs.c.parent_run_id))
    return or_(_tagged(jobs.c.first_run_id), inside)


def trial_runs() -> CompoundSelect[Any]:
    """Return the runs that are trials, or inside of one: what `is_trial_job` asks of each job.

    To count them, this begins with the few tags instead of all jobs (1 s of 100,000).
    """
    tagged = select(run_tags.c.run_id).where(
        run_tags.c.key.in_(TRIAL_TAGS), run_tags.c.value == experiments.c.experiment_id
    )
    return tagged.union(select(runs.c.run_id).where(runs.c.parent_run_id.in_(tagged)))


def can_fold(store: Store) -> bool:
    """Return False for a read-only store of a release that had no experiments."""
    if not store.read_only:
        return True
    with store.reading() as connection:
        known = inspect(connection)
        return all(known.has_table(table.name) for table in (experiments, run_tags, run_facts))


def run_groups(store: Store, conditions: Sequence[ColumnElement[bool]] = ()) -> list[TrialGroup]:
    """Return experiments with runs that fulfil the conditions, newest first."""
    counts = runs.c.counted & runs.c.quarantine.is_(None)
    source = runs.outerjoin(run_facts, run_facts.c.run_id == runs.c.run_id)
    return _groups(store, source, runs, run_facts, (runs.c.run_id, counts), conditions)


def job_groups(store: Store, conditions: Sequence[ColumnElement[bool]] = ()) -> list[TrialGroup]:
    """Return experiments with jobs that fulfil the conditions, newest first."""
    return _groups(store, jobs, jobs, jobs, (jobs.c.first_run_id, jobs.c.counted), conditions)


def group_of(tags: Mapping[str, str], known: Iterable[str]) -> str | None:
    """Return the experiment that the tags of a live run name, if it is a known one."""
    named = {tags.get(key) for key in TRIAL_TAGS}
    return next((each for each in known if each in named), None)


def _tagged(run_id: ColumnElement[Any]) -> ColumnElement[bool]:
    return exists().where(
        run_tags.c.run_id == run_id,
        run_tags.c.key.in_(TRIAL_TAGS),
        run_tags.c.value == experiments.c.experiment_id,
    )


def _groups(
    store: Store,
    source: FromClause,
    rows: FromClause,
    facts: FromClause,
    member: tuple[ColumnElement[Any], ColumnElement[bool]],
    conditions: Sequence[ColumnElement[bool]],
) -> list[TrialGroup]:
    if not can_fold(store):
        return []
    run_id, counts = member
    ends_s = rows.c.started_wall_s + func.coalesce(rows.c.duration_s, 0.0)
    sums = (rows.c.energy_j, facts.c.facility_j, facts.c.carbon_g)
    texts = [rows.c.host, rows.c.user_name, facts.c.project, facts.c.cluster, facts.c.partition]
    query = (
        select(
            *(experiments.c.experiment_id, experiments.c.kind, experiments.c.name),
            *(experiments.c.status, facts.c.provenance, func.count().label("runs")),
            func.min(rows.c.started_wall_s).label("started_wall_s"),
            func.max(ends_s).label("ended_wall_s"),
            *(func.sum(column).filter(counts).label(column.name) for column in sums),
            func.count().filter(facts.c.complete.is_(False)).label("incomplete"),
            *(func.min(column).label(column.name) for column in texts),
            *(func.max(column).label(f"last_{column.name}") for column in texts),
        )
        .select_from(
            source.join(run_tags, run_tags.c.run_id == run_id).join(
                experiments, experiments.c.experiment_id == run_tags.c.value
            )
        )
        .where(run_tags.c.key.in_(TRIAL_TAGS), *conditions)
        .group_by(
            *(experiments.c.experiment_id, experiments.c.kind, experiments.c.name),
            *(experiments.c.status, facts.c.provenance),
        )
    )
    found: dict[str, TrialGroup] = {}
    with store.reading() as connection:
        for row in connection.execute(query):
            part = _group(dict(row._mapping))
            known = found.get(part.experiment_id)
            found[part.experiment_id] = part if known is None else _joined(known, part)
    return sorted(found.values(), key=lambda g: (g.started_wall_s, g.experiment_id), reverse=True)


def _group(row: dict[str, Any]) -> TrialGroup:
    """Return the part of a group whose runs have one provenance."""
    duration_s = row.pop("ended_wall_s") - row["started_wall_s"]
    is_complete = not row.pop("incomplete")
    for name in SHARED:
        last = row.pop(f"last_{name}")
        row[name] = last or "" if row[name] == last else ""
    row["provenance"] = row["provenance"] or ""
    return TrialGroup(**row, duration_s=duration_s, complete=is_complete)


def _joined(one: TrialGroup, other: TrialGroup) -> TrialGroup:
    begin_s = min(one.started_wall_s, other.started_wall_s)
    end_s = max(each.started_wall_s + each.duration_s for each in (one, other))
    kinds = [Provenance(each.provenance) for each in (one, other) if each.provenance]
    return replace(
        one,
        runs=one.runs + other.runs,
        started_wall_s=begin_s,
        duration_s=end_s - begin_s,
        energy_j=_sum(one.energy_j, other.energy_j),
        facility_j=_sum(one.facility_j, other.facility_j),
        carbon_g=_sum(one.carbon_g, other.carbon_g),
        provenance=Provenance.weakest(kinds).value if kinds else "",
        complete=one.complete and other.complete,
        **{n: getattr(one, n) if getattr(one, n) == getattr(other, n) else "" for n in SHARED},
    )


def _sum(one: float | None, other: float | None) -> float | None:
    return one if other is None else other + (one or 0.0)
