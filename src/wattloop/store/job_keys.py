"""Which job a run belongs to, also where a batch system has given a number out twice.

A controller that lost its state begins with job 1 again. The newest job of a number has the plain
key, `slurm:lab:42`; one before it gets the time at which it began, `slurm:lab:42@2026-01-31T...`.
"""

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, func, select, update

from wattloop.core.results import RunStatus
from wattloop.store.job_rows import AGENT_KIND, job_key_of, lock_job_in, refresh_job_in
from wattloop.store.run_record import RunRecord, read_record
from wattloop.store.schema import runs

__all__ = ["job_key_in"]

APART_S = 30 * 86_400.0
"""A job that is requeued runs again within that; whoever has its number later is another."""
_COLUMNS = (
    *(runs.c.run_id, runs.c.kind, runs.c.host, runs.c.user_name, runs.c.status),
    *(runs.c.started_wall_s, runs.c.duration_s),
)
Row = Mapping[str, Any]


def job_key_in(connection: Connection, record: RunRecord) -> str:
    """The key under which a run is kept; earlier jobs of the same number make way for it."""
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
    """For a run of long ago that comes late: its job has made way already, or does so now."""
    begins = func.substr(runs.c.job_key, 1, len(key) + 1) == f"{key}@"
    found = connection.execute(select(runs.c.job_key).where(begins).distinct()).scalars()
    for earlier in sorted(str(one) for one in found):
        if _belongs(connection, record, _rows(connection, earlier)):
            return earlier
    return _dated(key, record.started_wall_s)


def _rows(connection: Connection, key: str) -> list[Row]:
    query = select(*_COLUMNS).where(runs.c.job_key == key)
    return [dict(row._mapping) for row in connection.execute(query)]


def _belongs(connection: Connection, record: RunRecord, known: Sequence[Row]) -> bool:
    """Whether a run is of the job that these runs are of."""
    begin_s = min(row["started_wall_s"] for row in known)
    end_s = max(_end_s(row) for row in known)
    own_end_s = record.started_wall_s + (record.duration_s or 0.0)
    if max(record.started_wall_s - end_s, begin_s - own_end_s) > APART_S:
        return False
    if record.kind != AGENT_KIND:
        return True
    agents = [row for row in known if row["kind"] == AGENT_KIND]
    users = {row["user_name"] for row in agents} - {""}
    if record.user and users and record.user not in users:
        return False
    here = [row for row in agents if row["host"] == record.host]
    return not any(_ran_before(connection, record, row) for row in here)


def _ran_before(connection: Connection, record: RunRecord, row: Row) -> bool:
    """Whether the node has a run of that very start of the job already, from begin to end.

    One that died is gone on with by another run; one that was requeued has another count.
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
