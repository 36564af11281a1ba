"""The energy of a job: many processes on one or several nodes, each device once per node."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from wattloop.accounting.device_efficiency import Insight, efficiencies, node_imbalance
from wattloop.core.records import Scope, picked
from wattloop.core.results import Missing, RunStatus, WindowResult
from wattloop.measure.meter_stream import domain_sources
from wattloop.measure.node_leader import merged_journal
from wattloop.measure.recovery import recorded_feeds
from wattloop.measure.window_energy import window_energy
from wattloop.store.journal import Journal

SHARES = "agent"
"""Name of the meter in runs that a node agent wrote: shares of the node's readings."""


class NodeRun(Protocol):
    """Protocol of the runs of `job_energy`: stored runs, or others with these fields."""

    run_id: str
    name: str
    status: RunStatus
    host: str
    boot_id: str
    started_wall_s: float
    started_s: float
    ended_s: float | None
    counted: bool
    job: dict[str, Any] | None
    settings: dict[str, Any]
    missing: list[dict[str, Any]]
    result: WindowResult | None


R = TypeVar("R", bound=NodeRun)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRunEnergy:
    """Energy of one node from the first process of the job that began to the last that ended."""

    host: str
    runs: tuple[str, ...]
    ranks: tuple[int, ...]
    died: int
    """Processes whose measurement ended early."""
    result: WindowResult

    def to_dict(self) -> dict[str, Any]:
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
class MeasuredJobEnergy:
    """Energy of a job, by node."""

    job_id: str
    kind: str
    world_size: int | None
    started_wall_s: float
    ended_wall_s: float
    nodes: tuple[NodeRunEnergy, ...]
    earlier: int = 0
    """Number of earlier jobs with the same name."""

    @property
    def energy_j(self) -> float | None:
        """Joules of all nodes; None when no node could be read."""
        parts = [n.result.energy_j for n in self.nodes if n.result.energy_j is not None]
        return sum(parts) if parts else None

    @property
    def uncertainty_j(self) -> float:
        """Half-width of the 95% interval of `energy_j`."""
        return math.hypot(*(n.result.uncertainty_j for n in self.nodes))

    @property
    def duration_s(self) -> float:
        """Seconds from the first beginning to the last end, in wall-clock time."""
        return self.ended_wall_s - self.started_wall_s

    @property
    def insights(self) -> tuple[Insight, ...]:
        """Insights on nodes that did less than the others."""
        by_node = {}
        for node in self.nodes:
            found = {e.name: e.value for e in efficiencies(node.result)}
            if "node" in found:
                by_node[node.host] = found["node"]
        return node_imbalance(by_node)

    @property
    def complete(self) -> bool:
        """True if every node was read completely."""
        return all(node.result.complete for node in self.nodes)

    def to_dict(self) -> dict[str, Any]:
        names = "job_id kind world_size started_wall_s duration_s energy_j uncertainty_j complete"
        return {
            **picked(self, f"{names} earlier"),
            "insights": [insight._asdict() for insight in self.insights],
            "nodes": [node.to_dict() for node in self.nodes],
        }


def job_energy(
    name: str,
    records: Sequence[R],
    readings: Callable[[R], Journal],
    *,
    earlier: int = 0,
) -> MeasuredJobEnergy:
    """Compute the energy of the runs that make up one job.

    Args:
        name: of the job.
        records: its runs.
        readings: returns the readings of a run; called only for runs that are needed.
        earlier: how many jobs of the same name ran before.
    """
    nodes: dict[tuple[str, str], list[R]] = {}
    for record in records:
        nodes.setdefault((record.host, record.boot_id), []).append(record)
    jobs = [record.job for record in records if record.job]
    return MeasuredJobEnergy(
        job_id=name,
        kind=str(jobs[0].get("kind") or "wattloop") if jobs else "wattloop",
        world_size=next((j["world_size"] for j in jobs if j.get("world_size")), None),
        started_wall_s=min(r.started_wall_s for r in records),
        ended_wall_s=max(map(_ended_wall_s, records)),
        nodes=tuple(_node_energy(own, readings) for _, own in sorted(nodes.items())),
        earlier=earlier,
    )


def _node_energy(records: Sequence[R], readings: Callable[[R], Journal]) -> NodeRunEnergy:
    begin_s = min(r.started_s for r in records)
    end_s = max(map(_ended_s, records))
    trusted = sorted(records, key=lambda r: (not r.counted, r.started_s - _ended_s(r)))
    journals = [readings(record) for record in _needed(trusted)]
    merged = merged_journal(journals)
    result = window_energy(
        domain_sources(recorded_feeds(merged), _devices(records)),
        _missing(records),
        name=records[0].name,
        window_id=0,
        parent_id=None,
        begin_s=begin_s,
        end_s=end_s,
    )
    divided = any(record.settings.get("share") == "process" for record in records)
    if not merged.blocks or divided:  # old runs without samples: use the result of each of them
        result = _as_found(records) or result
    elif all(feed["meter"] == SHARES for feed in merged.header["feeds"]):
        result = _as_stated(result, records)
    ranks = sorted({r.job["rank"] for r in records if r.job and r.job.get("rank") is not None})
    return NodeRunEnergy(
        host=records[0].host,
        runs=tuple(sorted(r.run_id for r in records)),
        ranks=tuple(ranks),
        died=sum(r.status is RunStatus.DIED for r in records),
        result=result,
    )


def _as_found(records: Sequence[R]) -> WindowResult | None:
    """Add the results of the runs that counted the node; None when none has one."""
    found = [r.result for r in records if r.counted and r.result is not None]
    if not found:
        return None
    domains = {d.name: d for d in found[0].domains}
    for later in found[1:]:
        for d in later.domains:
            before = domains.get(d.name)
            if before is not None and d.energy_j is not None:
                d = d._replace(  # noqa: PLW2901 - the sum in its place
                    energy_j=(before.energy_j or 0.0) + d.energy_j,
                    uncertainty_j=math.hypot(before.uncertainty_j, d.uncertainty_j),
                )
            domains[d.name] = d
    return found[0]._replace(
        end_s=found[0].begin_s + sum(one.duration_s for one in found),
        domains=tuple(domains.values()),
    )


def _as_stated(result: WindowResult, records: Sequence[NodeRun]) -> WindowResult:
    """Add the shares that the runs state; only the runs know their uncertainty."""
    stated_j: dict[str, float] = {}
    for record in records:
        for domain in () if record.result is None else record.result.domains:
            stated_j[domain.name] = math.hypot(stated_j.get(domain.name, 0.0), domain.uncertainty_j)
    domains = [d._replace(uncertainty_j=stated_j.get(d.name, 0.0)) for d in result.domains]
    return result._replace(domains=tuple(domains))


def _needed(trusted: Sequence[R]) -> list[R]:
    """Return runs that add time or devices to those before; samples of the others are not read."""
    needed: list[R] = []
    choices: list[Any] = []
    begin_s, end_s = math.inf, -math.inf
    for record in trusted:
        devices = record.settings.get("devices")
        if record.started_s < begin_s or _ended_s(record) > end_s or devices not in choices:
            needed.append(record)
            choices.append(devices)
            begin_s = min(begin_s, record.started_s)
            end_s = max(end_s, _ended_s(record))
    return needed


def _devices(records: Sequence[NodeRun]) -> list[str]:
    """Return the devices that any process was asked to read; empty means all.

    A device is excluded only if every process excluded it: ranks may have a GPU each.
    """
    asked = [set(r.settings.get("devices") or ()) for r in records]
    named = [{name for name in devices if not name.startswith("-")} for devices in asked]
    left_out = set.intersection(*({n for n in each if n.startswith("-")} for each in asked))
    return sorted(left_out | (set().union(*named) if all(named) else set()))


def _missing(records: Sequence[NodeRun]) -> list[Missing]:
    """Return the parts that are missing in every process."""
    lists = [{m["name"]: m for m in r.missing} for r in records]
    common = set(lists[0]).intersection(*lists[1:])
    return [Missing(**part) for name, part in lists[0].items() if name in common]


def _ended_s(record: NodeRun) -> float:
    return record.started_s if record.ended_s is None else record.ended_s


def _ended_wall_s(record: NodeRun) -> float:
    return record.started_wall_s + (_ended_s(record) - record.started_s)
