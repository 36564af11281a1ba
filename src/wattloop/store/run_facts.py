"""What lists and totals need of a run, in columns, so that ten thousand of them page at once."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, insert

from wattloop.core.records import Scope
from wattloop.store.run_record import RunRecord
from wattloop.store.schema import run_facts
from wattloop.store.text import plain

__all__ = ["facts_of", "insert_run_facts_in"]


def facts_of(record: RunRecord) -> dict[str, Any]:
    """Columns of one run."""
    job: Mapping[str, Any] = (record.job or {}).get("scheduler") or {}
    tags = record.tags
    accounting = record.accounting or {}
    result = record.result
    labels = accounting.get("labels") or {}
    facility = accounting.get("facility") or {}
    # what another run counts is in that run's grid energy and carbon
    part = 1.0 if record.left_out == 1.0 else 1.0 - record.left_out
    return {
        "run_id": record.run_id,
        "cluster": plain(tags.get("cluster") or job.get("cluster") or ""),
        "partition": plain(tags.get("partition") or job.get("partition") or ""),
        "project": plain(tags.get("project") or job.get("project") or ""),
        "exclusive": _exclusive(job.get("exclusive")),
        "device": plain(_device(record)),
        "label": labels.get("node") or labels.get("gpu") or labels.get("cpu") or "",
        "insights": ",".join(str(one["code"]) for one in accounting.get("insights") or ()),
        "provenance": "" if result is None or not result.provenance else result.provenance.value,
        "complete": result is not None and result.complete,
        "facility_j": _part(facility.get("energy_j"), part),
        "carbon_g": _part(accounting.get("carbon_g"), part),
        "efficiency": _efficiency(accounting),
        "job_nodes": _count(job.get("nodes")),
    }


def insert_run_facts_in(connection: Connection, record: RunRecord) -> None:
    """Keep them with the run, within its transaction."""
    connection.execute(insert(run_facts).values(**facts_of(record)))


def _part(value: Any, part: float) -> Any:
    return part * value if part < 1.0 and isinstance(value, int | float) else value


def _exclusive(value: Any) -> bool | None:
    """Whether the job had its nodes for itself; None where nobody said."""
    if value is None or value == "":
        return None
    return str(value).lower() not in ("0", "no", "false")


def _count(value: Any) -> int | None:
    """How many nodes its job has, as the batch system says."""
    text = str(value or "")
    return int(text) if text.isdecimal() and 0 < len(text) < 7 else None


def _efficiency(accounting: Mapping[str, Any]) -> float | None:
    """Energy over limit x time of all devices of the node."""
    for one in accounting.get("efficiencies") or ():
        if isinstance(one, Mapping) and one.get("name") == "node":
            value = one.get("value")
            return float(value) if isinstance(value, int | float) else None
    return None


def _device(record: RunRecord) -> str:
    """The device that drew most: what runs of one kind of machine have in common."""
    if record.result is None:
        return ""
    known = [d for d in record.result.domains if d.energy_j is not None and d.device]
    gpus = [d for d in known if d.scope is Scope.GPU] or known
    return max(gpus, key=lambda d: d.energy_j or 0.0).device or "" if gpus else ""
