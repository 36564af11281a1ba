"""Import of CodeCarbon's `emissions.csv` and its task files (versions 1 to 3).

Column names: https://mlco2.github.io/codecarbon/output.html. CodeCarbon does not record whether
an energy was measured or guessed (TDP times a constant for the CPU, watts per module for RAM), so
what it says is `estimated` here. The one exception are NVIDIA GPUs, which it can only read
through NVML.
"""

import csv
import hashlib
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, select

from wattloop.core.errors import ConfigError
from wattloop.core.records import Provenance, Scope
from wattloop.core.results import DomainEnergy, Missing, RunStatus, WindowResult
from wattloop.core.units import J_PER_KWH
from wattloop.store.database import Store
from wattloop.store.run_record import RunRecord, read_record
from wattloop.store.runs import delete_run_in, duration_in, has_run, insert_run_in
from wattloop.store.schema import runs

NEEDED = ("timestamp", "project_name", "duration", "emissions", "energy_consumed")
ESTIMATE_ERROR = 0.5
NVML_ERROR = 0.05
# older drivers print "A100-SXM4-40GB", without the maker
_NVIDIA = re.compile(
    r"nvidia|tesla|geforce|quadro|titan|\brtx|\b(A(100|800|10G?|16|30|40)|G?H[128]00|V100|"
    r"P100|P40?|T4G?|L4|L40S?|K80|B200)\b",
    re.IGNORECASE,
)
_PARTS = (
    ("cpu", Scope.CPU, "cpu_energy", "cpu_model"),
    ("gpu", Scope.GPU, "gpu_energy", "gpu_model"),
    ("dram", Scope.DRAM, "ram_energy", ""),
)


@dataclass(slots=True)
class Imported:
    """Result of an import. `problems` name the line and the fault."""

    added: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    known: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def import_codecarbon(store: Store, path: Path) -> Imported:
    """Insert the runs of the file that the store lacks; all or none."""
    records, problems = read_codecarbon(path)
    outcome = Imported(problems=problems)
    with store.writing() as connection:
        for record in records:
            kept_s = duration_in(connection, record.run_id)
            if kept_s is None:
                outcome.added.append(record.run_id)
            elif record.duration_s is not None and record.duration_s > kept_s:
                delete_run_in(connection, record.run_id)  # the file has grown since
                outcome.updated.append(record.run_id)
            else:
                outcome.known.append(record.run_id)
                continue
            insert_run_in(connection, record)
        _count_once(connection, records)
    return outcome


def _count_once(connection: Connection, records: Iterable[RunRecord]) -> None:
    """Exclude a task from totals as soon as its run is in the store: it is a part of it."""
    for run_id in {record.parent_run_id or record.run_id for record in records}:
        if not has_run(connection, run_id):
            continue
        bodies = connection.execute(select(runs.c.body).where(runs.c.parent_run_id == run_id))
        for task in [read_record(body) for body in bodies.scalars()]:
            if task.counted:
                delete_run_in(connection, task.run_id)
                insert_run_in(connection, replace(task, counted=False, counted_by=run_id))


def read_codecarbon(path: Path) -> tuple[list[RunRecord], list[str]]:
    """Return the runs of a file, and the faults of invalid lines.

    A tracker that was flushed several times has several lines with growing totals; the longest
    is the run.
    """
    found: dict[str, RunRecord] = {}
    problems: list[str] = []
    for line, row in _rows(path):
        try:
            record = _record(row, path)
        except ValueError as error:
            problems.append(f"{path}:{line}: {error}")
            continue
        other = found.get(record.run_id)
        if other is None or (record.duration_s or 0.0) >= (other.duration_s or 0.0):
            found[record.run_id] = record
    return list(found.values()), problems


def _rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in NEEDED if name not in (reader.fieldnames or ())]
            if missing:
                raise ConfigError(
                    f"{path}: not an emissions.csv of CodeCarbon: no column {', '.join(missing)}"
                )
            return [(reader.line_num, row) for row in reader]
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: not a CSV file in UTF-8: {error}") from None


def _record(row: dict[str, str], path: Path) -> RunRecord:
    if None in row or None in row.values():
        raise ValueError("has more or fewer cells than the first line")
    duration_s = _number(row, "duration")
    ended_wall_s = _moment(row["timestamp"])
    emissions_kg = _number(row, "emissions")
    run_id, parent_run_id = _run_id(row), None
    name = row["project_name"] or "codecarbon"
    task = row.get("task_name", "").strip()
    if task:  # the file of a tracker's tasks: each line is a part of the run
        parent_run_id, run_id = run_id, f"{run_id}-{_safe(task)}"
        name = f"{name}: {task}"
    version = row.get("codecarbon_version", "")
    mode = row.get("tracking_mode", "")
    return RunRecord(
        run_id=run_id,
        name=name,
        status=RunStatus.FINISHED,
        kind="imported",
        parent_run_id=parent_run_id,
        started_wall_s=ended_wall_s - duration_s,
        ended_wall_s=ended_wall_s,
        ended_s=duration_s,
        python=row.get("python_version", ""),
        version=f"codecarbon {version}".strip(),
        tags={"source": "codecarbon"} | ({"tracking_mode": mode} if mode else {}),
        settings={
            key: row[key]
            for key in ("country_iso_code", "region", "cloud_provider", "cloud_region", "pue", "os")
            if row.get(key)
        },
        result=_result(row, name, duration_s, version),
        accounting={"carbon_g": emissions_kg * 1_000, "summary": "emissions as CodeCarbon states"},
        notes=[f"imported from {path.name}; times are local to where it was imported"],
    )


def _result(row: dict[str, str], name: str, duration_s: float, version: str) -> WindowResult:
    domains, missing = [], []
    for domain, scope, column, device in _PARTS:
        if column not in row:
            continue
        energy_j = _number(row, column) * J_PER_KWH
        model = row.get(device, "") if device else ""
        if energy_j > 0:
            domains.append(_domain(domain, scope, energy_j, version, model))
        elif domain != "gpu" or model:
            missing.append(Missing(domain, "CodeCarbon wrote 0, which no powered device uses"))
    if not any(column in row for _, _, column, _ in _PARTS):  # version 1 has the sum only
        total_j = _number(row, "energy_consumed") * J_PER_KWH
        if total_j > 0:
            domains.append(_domain("total", Scope.OTHER, total_j, version, ""))
    return WindowResult(
        name=name,
        window_id=0,
        parent_id=None,
        begin_s=0.0,
        end_s=duration_s,
        domains=tuple(domains),
        missing=tuple(missing),
        warnings=(
            "CodeCarbon states no error: half of each estimate is assumed, 5% where it read NVML",
        ),
    )


def _domain(name: str, scope: Scope, energy_j: float, version: str, model: str) -> DomainEnergy:
    measured = scope is Scope.GPU and bool(_NVIDIA.search(model))
    error = NVML_ERROR if measured else ESTIMATE_ERROR
    return DomainEnergy(
        name=name,
        scope=scope,
        energy_j=energy_j,
        uncertainty_j=error * energy_j,
        provenance=Provenance.MEASURED if measured else Provenance.ESTIMATED,
        source=f"codecarbon {version}".strip(),
        known_error=error,
        device=model,
    )


def _run_id(row: dict[str, str]) -> str:
    """Return CodeCarbon's own identifier, or one made of the line for version 1."""
    own = row.get("run_id") or ""
    if not own:
        key = "|".join(row[name] for name in ("timestamp", "project_name", "duration"))
        own = hashlib.sha256(key.encode()).hexdigest()[:16]
    return f"codecarbon-{_safe(own)}"


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.-]", "_", text)


def _number(row: dict[str, Any], column: str) -> float:
    text = row[column].strip()
    if not text:
        return 0.0
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{column} is {text!r}, not a number") from None
    if not math.isfinite(value) or value < 0:
        raise ValueError(f"{column} is {text!r}; it must be 0 or more")
    return value


def _moment(text: str) -> float:
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"timestamp is {text!r}, not a time such as 2024-07-19T15:57:43") from None
