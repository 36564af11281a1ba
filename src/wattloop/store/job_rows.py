"""A row per job: what its runs add up to, kept up to date as they come and go.

A job of a batch system is one row, however many nodes measured it. Any other run is a job of its
own.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select

from wattloop.core.labels import below_peers, label_of
from wattloop.core.provenance import Provenance
from wattloop.core.results import RunStatus
from wattloop.store.run_record import RunRecord
from wattloop.store.schema import jobs, run_facts, runs
from wattloop.store.text import plain

__all__ = ["AGENT_KIND", "UNALLOCATED_KIND", "job_key_of", "lock_job_in", "refresh_job_in"]

AGENT_KIND = "slurm"
"""Kind of the runs that a node's agent writes. Where a job has any, they are its energy; what the
user's own program measured within it is shown beside them and not added."""
UNALLOCATED_KIND = "unallocated"
"""Kind of the runs that hold what a node used for no job."""
LONGEST_KEY = 200
_WORST_LAST = [*RunStatus]
_COLUMNS = (
    *(runs.c.run_id, runs.c.job_id, runs.c.name, runs.c.status, runs.c.kind, runs.c.host),
    *(runs.c.user_name, runs.c.parent_run_id, runs.c.started_wall_s, runs.c.duration_s),
    *(runs.c.energy_j, runs.c.uncertainty_j, runs.c.counted, runs.c.quarantine),
    *(run_facts.c.cluster, run_facts.c.partition, run_facts.c.project, run_facts.c.exclusive),
    *(run_facts.c.device, run_facts.c.label, run_facts.c.insights, run_facts.c.provenance),
    *(run_facts.c.complete, run_facts.c.facility_j, run_facts.c.carbon_g, run_facts.c.efficiency),
    run_facts.c.job_nodes,
)


def job_key_of(record: RunRecord) -> str:
    """The job that a run belongs to: the batch system's where it is part of one, else itself."""
    job = record.job or {}
    facts = job.get("scheduler")
    if isinstance(facts, Mapping):
        scheduler = facts.get("scheduler") or (job.get("kind") == "slurm" and "slurm")
        if scheduler and facts.get("job"):
            cluster = record.tags.get("cluster") or facts.get("cluster") or ""
            return plain(f"{scheduler}:{cluster}:{facts['job']}")[:LONGEST_KEY]
    return record.run_id


def lock_job_in(connection: Connection, job_key: str) -> None:
    """Two nodes of one job at a time: the second must see what the first has added."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.pg_advisory_xact_lock(func.hashtext(job_key))))


def refresh_job_in(connection: Connection, job_key: str) -> None:
    """Work out the row of a job from its runs; it goes when they are gone."""
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
        connection.execute(insert(jobs).values(job_key=job_key, **_together(members)))


def _together(members: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = members[0]
    by_agents = [m for m in members if m["kind"] == AGENT_KIND]
    adds = [m for m in by_agents or members if _counts(m)]
    shown = adds or by_agents or members
    begin_s = min(m["started_wall_s"] for m in shown)
    ends_s = [m["started_wall_s"] + m["duration_s"] for m in shown if m["duration_s"] is not None]
    energy_j = _total(m["energy_j"] for m in shown)
    nodes = len({m["host"] for m in shown})
    expected = max((m["job_nodes"] or 0 for m in by_agents), default=0) or None
    return {
        "first_run_id": first["run_id"],
        "job_id": first["job_id"],
        **{name: shown[0][name] for name in ("name", "kind", "user_name", "exclusive")},
        "status": max((m["status"] for m in shown), key=_badness),
        "host": shown[0]["host"],
        "nodes": nodes,
        "nodes_expected": expected,
        "runs": len(members),
        "started_wall_s": begin_s,
        "duration_s": max(ends_s) - begin_s if ends_s else None,
        "energy_j": energy_j,
        "uncertainty_j": None if energy_j is None else _uncertainty_j(shown),
        "counted": any(m["counted"] for m in shown),
        "in_totals": bool(adds),
        "quarantined": sum(m["quarantine"] is not None for m in members),
        **{name: _first(shown, name) for name in ("cluster", "partition", "project")},
        "device": _first(shown, "device"),
        **_judged(shown),
        "provenance": _provenance(shown),
        # a node that said nothing, or whose figures are not believed, is a part that is missing
        "complete": all(m["complete"] for m in shown)
        and nodes >= (expected or 0)
        and not any(m["quarantine"] is not None for m in by_agents if m not in shown),
        "facility_j": _total(m["facility_j"] for m in shown),
        "carbon_g": _total(m["carbon_g"] for m in shown),
    }


def _counts(member: Mapping[str, Any]) -> bool:
    return bool(
        member["counted"] and member["parent_run_id"] is None and member["quarantine"] is None
    )


def _judged(shown: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Label and insights: of all nodes together, and of nodes against each other."""
    codes = dict.fromkeys(code for m in shown for code in (m["insights"] or "").split(",") if code)
    known = [m for m in shown if m["efficiency"] and m["energy_j"]]
    if len(shown) == 1 or not known:
        return {"label": _first(shown, "label"), "insights": ",".join(codes)}
    # energy / (limit x time) of the sum; each node's limit x time is its energy / efficiency
    limits_j = sum(m["energy_j"] / m["efficiency"] for m in known)
    by_node: dict[str, float] = {}
    for member in known:
        by_node.setdefault(member["host"], member["efficiency"])
    if below_peers(by_node):
        codes["node_imbalance"] = None
    label = label_of(sum(m["energy_j"] for m in known) / limits_j).value
    for code in ("low", "high"):  # of single nodes; the job has its own
        if code != label:
            codes.pop(f"{code}_efficiency", None)
    return {"label": label, "insights": ",".join(codes)}


def _total(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) if known else None


def _uncertainty_j(shown: Sequence[Mapping[str, Any]]) -> float:
    return math.hypot(*(m["uncertainty_j"] or 0.0 for m in shown))


def _first(shown: Sequence[Mapping[str, Any]], name: str) -> str:
    return next((m[name] for m in shown if m[name]), "")


def _badness(status: str) -> int:
    return next((n for n, known in enumerate(_WORST_LAST) if known.value == status), 0)


def _provenance(shown: Sequence[Mapping[str, Any]]) -> str:
    known = [Provenance(m["provenance"]) for m in shown if m["provenance"]]
    return Provenance.weakest(known).value if known else ""
