"""The record of one run, and the columns that lists and totals need."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from sqlalchemy import Connection, insert

from wattloop.core.records import Scope
from wattloop.core.results import RunStatus, WindowResult
from wattloop.core.text import plain, plain_data
from wattloop.store.schema import run_facts

ALL = 0.99
"""A run of whose energy other runs count more than this share is in no total."""


@dataclass(slots=True, kw_only=True)
class RunRecord:
    """All data of one run except its samples, windows and steps.

    Attributes:
        run_id: unique; sorts by time of start.
        kind: `command`, `python`, or `imported`.
        started_wall_s: time of day of the start, seconds since 1970 UTC.
        started_s: the same moment on the machine's monotonic clock, which samples use.
        result: the root window: energy per domain, what is missing, warnings.
        accounting: idle, carbon, cost and labels, as computed when the run ended.
        counted: False when another run on this node already counts the same devices.
        counted_by: the run that does.
        shared: the time in which other runs counted the same devices, and the joules of it that
            they count (`left_out_j`): totals do not add those again.
        notes: what happened to the record itself, such as a torn journal.
        quarantine: why its figures are not trusted; they are in no total then.
        clock_offset_s: how far its machine's clock was ahead of the server's; start and end are
            corrected by it.
        provisional: kept because its machine fell silent; replaced when all of it comes.
    """

    run_id: str
    name: str = ""
    status: RunStatus = RunStatus.FINISHED
    kind: str = "command"
    command: list[str] | None = None
    started_wall_s: float = 0.0
    started_s: float = 0.0
    ended_wall_s: float | None = None
    ended_s: float | None = None
    host: str = ""
    machine_id: str = ""
    boot_id: str = ""
    pid: int | None = None
    user: str = ""
    cwd: str = ""
    python: str = ""
    version: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    tags: dict[str, Any] = field(default_factory=dict)
    job: dict[str, Any] | None = None
    parent_run_id: str | None = None
    feeds: list[dict[str, Any]] = field(default_factory=list)
    missing: list[dict[str, Any]] = field(default_factory=list)
    exit_code: int | None = None
    signal: int | None = None
    result: WindowResult | None = None
    accounting: dict[str, Any] | None = None
    counted: bool = True
    counted_by: str | None = None
    shared: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list)
    quarantine: str | None = None
    clock_offset_s: float | None = None
    provisional: bool = False

    @property
    def duration_s(self) -> float | None:
        """Length of the root window, else of the run."""
        if self.result is not None:
            return self.result.duration_s
        return None if self.ended_s is None else self.ended_s - self.started_s

    @property
    def energy_j(self) -> float | None:
        """Joules of all devices that were read; None when none was."""
        return None if self.result is None else self.result.energy_j

    @property
    def left_out(self) -> float:
        """Share of its energy that another run counts, 0 to 1."""
        left_out_j, energy_j = (self.shared or {}).get("left_out_j"), self.energy_j
        if not isinstance(left_out_j, int | float) or not energy_j:
            return 0.0
        part = min(1.0, max(0.0, left_out_j / energy_j))
        return 1.0 if part > ALL else part

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, with duration, energy and uncertainty."""
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        data["status"] = self.status.value
        data["result"] = None if self.result is None else self.result.to_dict()
        data["duration_s"] = self.duration_s
        data["energy_j"] = self.energy_j
        data["uncertainty_j"] = None if self.result is None else self.result.uncertainty_j
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "RunRecord":
        """Convert back from `to_dict`; fields of later versions are left out."""
        known = {f.name: data[f.name] for f in fields(cls) if f.name in data}
        known["status"] = RunStatus(known.get("status", RunStatus.FINISHED))
        if known.get("result") is not None:
            known["result"] = WindowResult.from_dict(known["result"])
        return cls(**known)


def read_record(body: str) -> RunRecord:
    """Parse a record from its stored text."""
    return RunRecord.from_dict(plain_data(body))


def facts_of(record: RunRecord) -> dict[str, Any]:
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
        "insights": ",".join(
            [
                *(str(one["code"]) for one in accounting.get("insights") or ()),
                *(["shared"] if record.shared else []),
            ]
        ),
        "provenance": "" if result is None or not result.provenance else result.provenance.value,
        "complete": result is not None and result.complete,
        "facility_j": _part(facility.get("energy_j"), part),
        "carbon_g": _part(accounting.get("carbon_g"), part),
        "efficiency": _efficiency(accounting),
        "job_nodes": _count(job.get("nodes")),
    }


def insert_run_facts_in(connection: Connection, record: RunRecord) -> None:
    """Insert the facts of a run, within its transaction."""
    connection.execute(insert(run_facts).values(**facts_of(record)))


def _part(value: Any, part: float) -> Any:
    return part * value if part < 1.0 and isinstance(value, int | float) else value


def _exclusive(value: Any) -> bool | None:
    """Return True if the job had its nodes to itself; None where unknown."""
    if value is None or value == "":
        return None
    return str(value).lower() not in ("0", "no", "false")


def _count(value: Any) -> int | None:
    """Return the number of the job's nodes, from the batch system."""
    text = str(value or "")
    return int(text) if text.isdecimal() and 0 < len(text) < 7 else None


def _efficiency(accounting: Mapping[str, Any]) -> float | None:
    """Return energy over limit x time of all devices of the node."""
    for one in accounting.get("efficiencies") or ():
        if isinstance(one, Mapping) and one.get("name") == "node":
            value = one.get("value")
            return float(value) if isinstance(value, int | float) else None
    return None


def _device(record: RunRecord) -> str:
    """Return the device that used most energy, which groups runs by kind of machine."""
    if record.result is None:
        return ""
    known = [d for d in record.result.domains if d.energy_j is not None and d.device]
    gpus = [d for d in known if d.scope is Scope.GPU] or known
    return max(gpus, key=lambda d: d.energy_j or 0.0).device or "" if gpus else ""
