"""The energy of a job of Slurm, from a store or from the fleet's server."""

import json
import math
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from wattloop.core.errors import RunNotFound, StoreError
from wattloop.core.records import Scope
from wattloop.schedule.slurm.annotating import JobEnergy
from wattloop.store.database import Store
from wattloop.store.job_list import job_with_runs
from wattloop.store.runs import find_run

__all__ = ["energy_from_fleet", "energy_from_store"]

TIMEOUT_S = 2.0
LARGEST_B = 2_000_000


def energy_from_store(store: Store, cluster: str, number: str) -> JobEnergy | None:
    """What the store has of a job; None while nothing is complete."""
    try:
        row, runs = job_with_runs(store, f"slurm:{cluster}:{number}")
        measured = [run for run in runs if run["kind"] == "slurm"]
        gpu_j = [_gpu_j(store, str(run["run_id"])) for run in measured]
    except (RunNotFound, StoreError):
        return None
    known = [joules for joules in gpu_j if joules is not None]
    return _energy(row, measured, sum(known) if known and len(known) == len(gpu_j) else None)


def energy_from_fleet(url: str, token: str, cluster: str, number: str) -> JobEnergy | None:
    """What the fleet's server has of a job; None while nothing is complete, or it is away."""
    place = f"{url.rstrip('/')}/api/v1/jobs/{quote(f'slurm:{cluster}:{number}')}"
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(place, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            data = json.loads(answer.read(LARGEST_B))
        runs = [run for run in data["runs"] if run["kind"] == "slurm"]
        return _energy(data["job"], runs, None)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _energy(row: Mapping[str, Any], runs: Any, gpu_j: float | None) -> JobEnergy | None:
    energy_j = row.get("energy_j")
    if isinstance(energy_j, bool) or not isinstance(energy_j, int | float):
        return None
    ended = [run for run in runs if run["energy_j"] is not None and run["status"] != "running"]
    nodes = {run["host"] for run in ended}
    if not math.isfinite(energy_j) or energy_j < 0 or not nodes:
        return None
    return JobEnergy(float(energy_j), gpu_j, str(row.get("provenance") or "unknown"), len(nodes))


def _gpu_j(store: Store, run_id: str) -> float | None:
    result = find_run(store, run_id).result
    return None if result is None else result.scope_energy_j(Scope.GPU)
