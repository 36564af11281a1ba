"""Which runs make up a job, and their readings in the form in which they were written."""

from __future__ import annotations  # array[float] cannot be evaluated before Python 3.12

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wattloop.core.errors import RunNotFound
from wattloop.store.chunks import read_samples
from wattloop.store.database import Store
from wattloop.store.frames import SampleBlock
from wattloop.store.journal import Journal
from wattloop.store.runs import RunFilter, RunRecord, find_run, list_runs
from wattloop.store.series import series_of

__all__ = ["JobMembers", "find_job_members", "stored_journal"]

LOOK_BACK = 1_000
"""How many runs are looked at to find the last job."""


@dataclass(frozen=True, slots=True)
class JobMembers:
    """The runs of one job."""

    name: str
    records: tuple[RunRecord, ...]
    earlier: int
    """Jobs of the same name that ran before this one."""


def find_job_members(store: Store, reference: str = "last") -> JobMembers:
    """The job of this name, the one that a run belongs to, or the `last` one.

    Launchers give every job the same name unless told otherwise, so runs of one name that do not
    overlap in time are different jobs; the newest is meant.

    Raises:
        RunNotFound: no such job or run, or a run that is not part of any job.
    """
    anchor = _anchor(store, reference)
    name = _job_name(anchor)
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
    """The readings of a stored run, without signals and events."""
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
    """A run of the job that is meant."""
    named = list_runs(store, RunFilter(job=reference))
    if named:
        return named[0]
    if reference == "last":
        recent = list_runs(store, limit=LOOK_BACK)
        return next((r for r in recent if r.job), None) or find_run(store, "last")
    return find_run(store, reference)


def _launching_run(store: Store, name: str) -> list[RunRecord]:
    """The run that started the others, where the job is called after it."""
    try:
        record = find_run(store, name)
    except RunNotFound:
        return []
    return [record] if record.run_id == name and not record.job else []


def _job_name(record: RunRecord) -> str:
    """A run without a job is the job of those that it started."""
    return str(record.job["id"]) if record.job else record.run_id


def _attempts(members: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Runs that overlap in time, directly or through others; the oldest first."""
    attempts: list[list[RunRecord]] = []
    until_s = -math.inf
    for record in sorted(members, key=lambda r: r.started_wall_s):
        if record.started_wall_s > until_s:
            attempts.append([])
        attempts[-1].append(record)
        ended_s = record.started_s if record.ended_s is None else record.ended_s
        until_s = max(until_s, record.started_wall_s + ended_s - record.started_s)
    return attempts
