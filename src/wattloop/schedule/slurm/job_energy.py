"""The energy of a job of Slurm, from a store or from the fleet's server."""

import json
import math
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from wattloop.core.errors import RunNotFound, StoreError
from wattloop.schedule.slurm.annotating import JobEnergy
from wattloop.store.database import Store
from wattloop.store.job_queries import job_with_runs

__all__ = ["energy_from_fleet", "energy_from_store"]

TIMEOUT_S = 2.0
LARGEST_B = 2_000_000


def energy_from_store(store: Store, cluster: str, number: str) -> JobEnergy | None:
    """What the store has of a job; None while nothing is complete."""
    try:
        row, runs = job_with_runs(store, f"slurm:{cluster}:{number}")
    except (RunNotFound, StoreError):
        return None
    return _energy(row, runs)


def energy_from_fleet(url: str, token: str, cluster: str, number: str) -> JobEnergy | None:
    """What the fleet's server has of a job; None while nothing is complete, or it is away."""
    place = f"{url.rstrip('/')}/api/v1/jobs/{quote(f'slurm:{cluster}:{number}')}"
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(place, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            data = json.loads(answer.read(LARGEST_B))
        return _energy(data["job"], data["runs"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _energy(row: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> JobEnergy | None:
    energy_j = row.get("energy_j")
    if isinstance(energy_j, bool) or not isinstance(energy_j, int | float):
        return None
    measured = [run for run in runs if run["kind"] == "slurm"]
    ended = [run for run in measured if run["energy_j"] is not None and run["status"] != "running"]
    nodes = {run["host"] for run in ended}
    if not math.isfinite(energy_j) or energy_j < 0 or not nodes:
        return None
    provenance = str(row.get("provenance") or "unknown")
    return JobEnergy(float(energy_j), _gpu_j(measured), provenance, len(nodes))


def _gpu_j(runs: Sequence[Mapping[str, Any]]) -> float | None:
    """Of all its runs; None unless each of them knows."""
    found = [run.get("gpu_energy_j") for run in runs]
    known = [float(joules) for joules in found if joules is not None]
    return sum(known) if known and len(known) == len(found) else None
