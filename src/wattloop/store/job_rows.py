"""Rows of jobs: their keys, and the totals of their runs."""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update

from wattloop.core.results import RunStatus
from wattloop.store.run_record import AGENT_KINDS, RunRecord, job_key_of, job_row, read_record
from wattloop.store.schema import jobs, run_facts, runs

# One row per job, updated as its runs are inserted and deleted. A job of a batch system is one row,
# however many nodes measured it. Any other run is its own job.

_COLUMNS = (
    *(column for column in runs.c if column.name != "body"),
    *(column for column in run_facts.c if column.name != "run_id"),
)


def lock_job_in(connection: Connection, job_key: str) -> None:
    """Lock a job: two nodes must not update its row at the same time."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(func.hashtext(job_key))))


def refresh_job_in(connection: Connection, job_key: str) -> None:
    """Compute the row of a job from its runs; it is deleted with the last run."""
    lock_job_in(connection, job_key)
    query = (
        select(*_COLUMNS)
        .select_from(runs.outerjoin(run_facts, run_facts.c.run_id == runs.c.run_id))
        .where(runs.c.job_key == job_key)
        .order_by(runs.c.started_wall_s, runs.c.run_id)
    )
    members = [dict(row._mapping) for row in connection.execute(query)]
    connection.execute(delete(jobs).where(jobs.c.job_key == job_key))
    if members:
        connection.execute(insert(jobs).values(job_row(members) | {"job_key": job_key}))


# Keys of jobs, also where a batch system has used a number twice.
#
# A controller that lost its state begins with job 1 again. The newest job of a number has the plain
# key, `slurm:lab:42`; an earlier one gets the time at which it began,
# `slurm:lab:42@2026-01-31T...`.

APART_S = 30 * 86_400.0
"""A requeued job runs again within this time; a later job with its number is another one."""
_KEY_COLUMNS = (
    *(runs.c.run_id, runs.c.kind, runs.c.host, runs.c.user_name, runs.c.status),
    *(runs.c.started_wall_s, runs.c.duration_s),
)
Row = Mapping[str, Any]


def job_key_in(connection: Connection, record: RunRecord) -> str:
    """Return the key of a run; earlier jobs of the same number are renamed."""
    key = job_key_of(record)
    if key == record.run_id:
        return key
    lock_job_in(connection, key)
    known = _rows(connection, key)
    if not known or _belongs(connection, record, known):
        return key
    before = [row["run_id"] for row in known if _end_s(row) <= record.started_wall_s]
    if not before:
        return _earlier_key(connection, record, key)
    began_s = min(row["started_wall_s"] for row in known if row["run_id"] in before)
    earlier = _dated(key, began_s)
    connection.execute(update(runs).where(runs.c.run_id.in_(before)).values(job_key=earlier))
    refresh_job_in(connection, earlier)
    return key


def _earlier_key(connection: Connection, record: RunRecord, key: str) -> str:
    """Return the key of a late, old run: its job was renamed already, or is renamed now."""
    begins = func.substr(runs.c.job_key, 1, len(key) + 1) == f"{key}@"
    found = connection.execute(select(runs.c.job_key).where(begins).distinct()).scalars()
    for earlier in sorted(str(one) for one in found):
        if _belongs(connection, record, _rows(connection, earlier)):
            return earlier
    return _dated(key, record.started_wall_s)


def _rows(connection: Connection, key: str) -> list[Row]:
    query = select(*_KEY_COLUMNS).where(runs.c.job_key == key)
    return [dict(row._mapping) for row in connection.execute(query)]


def _belongs(connection: Connection, record: RunRecord, known: Sequence[Row]) -> bool:
    """Return True if a run belongs to the job of these runs."""
    begin_s = min(row["started_wall_s"] for row in known)
    end_s = max(_end_s(row) for row in known)
    own_end_s = record.started_wall_s + (record.duration_s or 0.0)
    if max(record.started_wall_s - end_s, begin_s - own_end_s) > APART_S:
        return False
    if record.kind not in AGENT_KINDS:
        return True
    agents = [row for row in known if row["kind"] in AGENT_KINDS]
    users = {row["user_name"] for row in agents} - {""}
    if record.user and users and record.user not in users:
        return False
    here = [row for row in agents if row["host"] == record.host]
    return not any(_ran_before(connection, record, row) for row in here)


def _ran_before(connection: Connection, record: RunRecord, row: Row) -> bool:
    """Return True if the node already has a run of that very start of the job, from begin to end.

    A crashed run is continued by another run; a requeued one has another restart count.
    """
    if row["status"] == RunStatus.DIED or not _restart(record.job):
        return False
    apart = max(
        record.started_wall_s - _end_s(row),
        row["started_wall_s"] - record.started_wall_s - (record.duration_s or 0.0),
    )
    if apart < 0:
        return False
    body = connection.execute(
        select(runs.c.body).where(runs.c.run_id == row["run_id"])
    ).scalar_one()
    return _restart(read_record(body).job) == _restart(record.job)


def _restart(job: Mapping[str, Any] | None) -> str:
    facts = (job or {}).get("scheduler")
    return str(facts.get("restart") or "") if isinstance(facts, Mapping) else ""


def _end_s(row: Row) -> float:
    length_s = row["duration_s"] or 0.0
    return float(row["started_wall_s"] + (length_s if math.isfinite(length_s) else 0.0))


def _dated(key: str, wall_s: float) -> str:
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(max(0.0, min(wall_s, 1e11))))
    return f"{key[:170]}@{moment}"
