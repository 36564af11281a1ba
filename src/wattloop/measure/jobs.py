"""The energy of a job: many processes on one or several nodes, each device once per node."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattloop.core.errors import RunNotFound
from wattloop.core.records import Missing, RunStatus, Scope, WindowResult
from wattloop.measure.closing import recorded_feeds
from wattloop.measure.feeds import channels_of
from wattloop.measure.merging import merged_journal
from wattloop.measure.resolve import resolve_window
from wattloop.store.journal import Journal, SampleBlock

if TYPE_CHECKING:
    from wattloop.store.database import Store
    from wattloop.store.runs import RunRecord

__all__ = ["JobEnergy", "NodeEnergy", "find_job"]

LOOK_BACK = 1_000
"""How many runs are looked at to find the last job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnergy:
    """What one node used from the first process of the job that began to the last that ended."""

    host: str
    runs: tuple[str, ...]
    ranks: tuple[int, ...]
    died: int
    """Processes whose measuring was cut off."""
    result: WindowResult

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        scopes = {f"{scope}_energy_j": self.result.scope_energy_j(scope) for scope in Scope}
        return {
            "host": self.host,
            "runs": list(self.runs),
            "ranks": list(self.ranks),
            "died": self.died,
            **scopes,
            **self.result.to_dict(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnergy:
    """A job with its nodes."""

    job_id: str
    kind: str
    world_size: int | None
    started_wall_s: float
    ended_wall_s: float
    nodes: tuple[NodeEnergy, ...]
    earlier: int = 0
    """Jobs of the same name that ran before this one."""

    @property
    def energy_j(self) -> float | None:
        """Joules of all nodes; None when nothing could be read on any."""
        parts = [n.result.energy_j for n in self.nodes if n.result.energy_j is not None]
        return sum(parts) if parts else None

    @property
    def uncertainty_j(self) -> float:
        """Half-width of the 95% interval of `energy_j`."""
        return math.hypot(*(n.result.uncertainty_j for n in self.nodes))

    @property
    def duration_s(self) -> float:
        """Seconds from the first beginning to the last end, by the time of day."""
        return self.ended_wall_s - self.started_wall_s

    @property
    def complete(self) -> bool:
        """Whether every node was read completely."""
        return all(node.result.complete for node in self.nodes)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "job_id": self.job_id,
            "kind": self.kind,
            "world_size": self.world_size,
            "started_wall_s": self.started_wall_s,
            "duration_s": self.duration_s,
            "energy_j": self.energy_j,
            "uncertainty_j": self.uncertainty_j,
            "complete": self.complete,
            "earlier": self.earlier,
            "nodes": [node.to_dict() for node in self.nodes],
        }


def find_job(store: Store, reference: str = "last") -> JobEnergy:
    """The job of this name, the one that a run belongs to, or the `last` one.

    Launchers give every job the same name unless told otherwise, so runs of one name that do not
    overlap in time are different jobs; the newest is meant.

    Raises:
        RunNotFound: no such job or run, or a run that is not part of any job.
    """
    from wattloop.store.runs import RunFilter, find_run, list_runs

    named = list_runs(store, RunFilter(job=reference))
    if named:
        anchor = named[0]
    elif reference == "last":
        recent = list_runs(store, limit=LOOK_BACK)
        anchor = next((r for r in recent if r.job), None) or find_run(store, "last")
    else:
        anchor = find_run(store, reference)
    name = _job_name(anchor)
    members = list_runs(store, RunFilter(job=name))
    members += _launching_run(store, name)
    attempts = _attempts(members or [anchor])
    mine = next(a for a in attempts if any(r.run_id == anchor.run_id for r in a))
    if len(mine) == 1 and not mine[0].job:
        raise RunNotFound(
            f"run {anchor.run_id} is not part of a job; see it with: wattloop runs show "
            f"{anchor.run_id}"
        )
    return _job_energy(store, name, mine, earlier=attempts.index(mine))


def _launching_run(store: Store, name: str) -> list[RunRecord]:
    """The run that started the others, where the job is called after it."""
    from wattloop.store.runs import find_run

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
        until_s = max(until_s, _ended_wall_s(record))
    return attempts


def _job_energy(
    store: Store, name: str, records: Sequence[RunRecord], *, earlier: int
) -> JobEnergy:
    nodes: dict[tuple[str, str], list[RunRecord]] = {}
    for record in records:
        nodes.setdefault((record.host, record.boot_id), []).append(record)
    jobs = [record.job for record in records if record.job]
    return JobEnergy(
        job_id=name,
        kind=str(jobs[0]["kind"]) if jobs else "wattloop",
        world_size=next((j["world_size"] for j in jobs if j.get("world_size")), None),
        started_wall_s=min(r.started_wall_s for r in records),
        ended_wall_s=max(map(_ended_wall_s, records)),
        nodes=tuple(_node_energy(store, own) for _, own in sorted(nodes.items())),
        earlier=earlier,
    )


def _node_energy(store: Store, records: Sequence[RunRecord]) -> NodeEnergy:
    begin_s = min(r.started_s for r in records)
    end_s = max(map(_ended_s, records))
    trusted = sorted(records, key=lambda r: (not r.counted, r.started_s - _ended_s(r)))
    journals = [_journal(store, record) for record in _needed(trusted)]
    merged = merged_journal(journals)
    result = resolve_window(
        channels_of(recorded_feeds([merged]), _devices(records)),
        _missing(records),
        name=records[0].name,
        window_id=0,
        parent_id=None,
        begin_s=begin_s,
        end_s=end_s,
    )
    ranks = sorted({r.job["rank"] for r in records if r.job and r.job.get("rank") is not None})
    return NodeEnergy(
        host=records[0].host,
        runs=tuple(sorted(r.run_id for r in records)),
        ranks=tuple(ranks),
        died=sum(r.status is RunStatus.DIED for r in records),
        result=result,
    )


def _needed(trusted: Sequence[RunRecord]) -> list[RunRecord]:
    """Runs that add time to those before them; the samples of the others are not even read."""
    needed: list[RunRecord] = []
    begin_s, end_s = math.inf, -math.inf
    for record in trusted:
        if record.started_s < begin_s or _ended_s(record) > end_s:
            needed.append(record)
            begin_s = min(begin_s, record.started_s)
            end_s = max(end_s, _ended_s(record))
    return needed


def _journal(store: Store, record: RunRecord) -> Journal:
    """The stored run in the form in which it was written."""
    from wattloop.store.chunks import read_samples
    from wattloop.store.series import series_of

    journal = Journal(Path(record.run_id), {"feeds": record.feeds})
    for index, feed in enumerate(record.feeds):
        series = [s for s in series_of(record.feeds) if s.feed == index]
        columns = [read_samples(store, record.run_id, s) for s in series]
        if columns and len(columns[0][0]):
            times_s = columns[0][0]
            values = type(times_s)("d", bytes(8 * len(times_s) * len(columns)))
            for i, (_, column) in enumerate(columns):
                values[i :: len(columns)] = column
            journal.blocks.append(SampleBlock(index, len(feed["domains"]), times_s, values))
    return journal


def _devices(records: Sequence[RunRecord]) -> list[str]:
    """What any of the processes was asked to read; empty means everything."""
    asked = [list(r.settings.get("devices") or ()) for r in records]
    return [] if not all(asked) else sorted({device for devices in asked for device in devices})


def _missing(records: Sequence[RunRecord]) -> list[Missing]:
    """Parts that no process could read: what is missing in all of them."""
    lists = [{m["name"]: m for m in r.missing} for r in records]
    common = set(lists[0]).intersection(*lists[1:])
    return [Missing(**part) for name, part in lists[0].items() if name in common]


def _ended_s(record: RunRecord) -> float:
    return record.started_s if record.ended_s is None else record.ended_s


def _ended_wall_s(record: RunRecord) -> float:
    return record.started_wall_s + (_ended_s(record) - record.started_s)
