"""Measured energy of finished jobs, written into their AdminComment."""

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from wattloop.core.errors import RunNotFound, SlurmAway, SlurmError, StoreError
from wattloop.core.process import BackgroundThread
from wattloop.fleet.delivery.client import fetch_json
from wattloop.fleet.slurm_text import format_notes
from wattloop.schedule.driver.event_log import DriverLog
from wattloop.schedule.driver.inventory import SchedulerJob
from wattloop.schedule.slurm.client import SlurmClient
from wattloop.store.database import Store
from wattloop.store.job_queries import job_with_runs

# slurmctld refuses changes of a finished job, so the comment goes into slurmdbd where there is
# one. Without slurmdbd, the energy is only in the store and on the fleet server.
GIVE_UP_S = 3_600.0
EVERY_S = 5.0
GOODBYE_S = 5.0
MOST_AT_ONCE = 20
MOST_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class MeasuredEnergy:
    """Measured energy of a job: the joules of all meters on its nodes.

    Attributes:
        gpu_j: of its GPUs alone; None where it is not measured separately.
        nodes: nodes whose runs are complete.
    """

    energy_j: float
    gpu_j: float | None
    provenance: str
    nodes: int


class EnergyAnnotator(BackgroundThread):
    """Background thread that writes the energy of finished jobs once it is known.

    Args:
        energy_of: returns the energy of a job by its number; None while it is unknown.
    """

    def __init__(
        self, client: SlurmClient, energy_of: Callable[[str], MeasuredEnergy | None], log: DriverLog
    ) -> None:
        super().__init__("annotating", patience_s=GOODBYE_S)
        self._client, self._energy_of, self._log = client, energy_of, log
        self._running: dict[str, SchedulerJob] = {}
        self._ended: dict[str, tuple[SchedulerJob, float]] = {}
        self._guard = threading.Lock()
        self.may_write = True

    def update(self, jobs: Mapping[str, SchedulerJob], now_s: float) -> None:
        """Queue the jobs that have finished since the last call."""
        running = {key: job for key, job in jobs.items() if job.has_machines}
        with self._guard:
            for key, job in self._running.items():
                if key not in jobs:
                    self._ended[key] = (job, now_s)
            while len(self._ended) > MOST_KEPT:
                del self._ended[next(iter(self._ended))]
        self._running = running

    def write(self, now_s: float) -> None:
        """Write the known energy of the first few queued jobs."""
        with self._guard:
            ended = list(self._ended.items())[:MOST_AT_ONCE]
        for key, (job, ended_s) in ended:
            found = self._energy_of(job.number or key)
            is_known = found is not None and found.nodes >= len(job.placed)
            with self._guard:
                entry = self._ended.pop(key, None)
                if not is_known and entry is not None and now_s - ended_s <= GIVE_UP_S:
                    self._ended[key] = entry  # retry after the others
            if is_known and found is not None:
                self._annotate(job, found)

    def _work(self) -> None:
        while not self._stop.wait(EVERY_S):
            self.write(time.time())

    def _annotate(self, job: SchedulerJob, found: MeasuredEnergy) -> None:
        notes: dict[str, Any] = {
            "energy_j": round(found.energy_j, 1),
            "gpu_j": None if found.gpu_j is None else round(found.gpu_j, 1),
            "provenance": found.provenance,
        }
        self._log.add("energy", job=job.key, user=job.user, **notes)
        if not self.may_write:
            return
        text = format_notes(job.admin_comment, notes)
        try:
            if self._client.update_jobs([job.key], {"AdminComment": text}):
                # The job has finished: only slurmdbd can be changed.
                self._client.annotate_finished_job(job.number or job.key, text)
        except SlurmAway as error:
            self._log.add("warning", f"job {job.key}: energy not written: {error}")
        except SlurmError as error:
            self.may_write = False
            self._log.add(
                "warning",
                f"energy is not written into AdminComment: slurmctld takes none for ended jobs, "
                f"and {error}; it is in the store",
            )


TIMEOUT_S = 2.0


def energy_from_store(store: Store, cluster: str, number: str) -> MeasuredEnergy | None:
    """Read the energy of a job from the store; None while no run is complete."""
    try:
        row, runs = job_with_runs(store, f"slurm:{cluster}:{number}")
    except (RunNotFound, StoreError):
        return None
    return _energy(row, runs)


def energy_from_fleet(url: str, token: str, cluster: str, number: str) -> MeasuredEnergy | None:
    """Read the energy of a job from the fleet server; None while incomplete or unreachable."""
    place = f"{url.rstrip('/')}/api/v1/jobs/{quote(f'slurm:{cluster}:{number}')}"
    try:
        data = fetch_json(place, token, TIMEOUT_S)
        return _energy(data["job"], data["runs"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _energy(row: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> MeasuredEnergy | None:
    energy_j = row.get("energy_j")
    if isinstance(energy_j, bool) or not isinstance(energy_j, int | float):
        return None
    measured = [run for run in runs if run["kind"] == "slurm"]
    ended = [run for run in measured if run["energy_j"] is not None and run["status"] != "running"]
    nodes = {run["host"] for run in ended}
    if not math.isfinite(energy_j) or energy_j < 0 or not nodes:
        return None
    provenance = str(row.get("provenance") or "unknown")
    return MeasuredEnergy(float(energy_j), _gpu_j(measured), provenance, len(nodes))


def _gpu_j(runs: Sequence[Mapping[str, Any]]) -> float | None:
    """Sum the GPU energy of all runs; None unless every run has it."""
    found = [run.get("gpu_energy_j") for run in runs]
    known = [float(joules) for joules in found if joules is not None]
    return sum(known) if known and len(known) == len(found) else None
