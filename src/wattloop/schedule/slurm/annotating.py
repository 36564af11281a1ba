"""Measured energy into AdminComment, once a job's runs of all its nodes are in the store.

slurmctld lets nobody change a job that has ended. Where Slurm keeps accounts (slurmdbd), the
comment is written there, and `sacct -o JobID,AdminComment` shows it. Where it keeps none, the
energy is in the store, on the Jobs page and in `GET /api/v1/jobs/slurm:CLUSTER:JOB`.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from wattloop.core.errors import SlurmAway, SlurmError
from wattloop.core.threads import BackgroundThread
from wattloop.schedule.slurm.admin_comment import noted
from wattloop.schedule.slurm.client import SlurmClient, update_words
from wattloop.schedule.slurm.event_log import EventLog
from wattloop.schedule.slurm.job_record import SlurmJob

__all__ = ["Annotating", "JobEnergy"]

GIVE_UP_S = 3_600.0
EVERY_S = 5.0
GOODBYE_S = 5.0
MOST_AT_ONCE = 20
MOST_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class JobEnergy:
    """What was measured of a job: joules of everything that was read on its nodes.

    Attributes:
        gpu_j: of its GPUs alone; None where that is not told apart.
        nodes: whose runs are complete.
    """

    energy_j: float
    gpu_j: float | None
    provenance: str
    nodes: int


class Annotating(BackgroundThread):
    """Jobs that ended, until their energy is known and written, beside the rounds.

    Args:
        client: Slurm.
        energy_of: the energy of a job by its number; None while it is not known.
        log: what was written, and why not.
    """

    def __init__(
        self, client: SlurmClient, energy_of: Callable[[str], JobEnergy | None], log: EventLog
    ) -> None:
        super().__init__("annotating", patience_s=GOODBYE_S)
        self._client, self._energy_of, self._log = client, energy_of, log
        self._running: dict[str, SlurmJob] = {}
        self._ended: dict[str, tuple[SlurmJob, float]] = {}
        self._guard = threading.Lock()
        self.may_write = True

    def look(self, jobs: Mapping[str, SlurmJob], now_s: float) -> None:
        """Take note of jobs that ended since the last look."""
        running = {key: job for key, job in jobs.items() if job.has_machines}
        with self._guard:
            for key, job in self._running.items():
                if key not in jobs:
                    self._ended[key] = (job, now_s)
            while len(self._ended) > MOST_KEPT:
                del self._ended[next(iter(self._ended))]
        self._running = running

    def write(self, now_s: float) -> None:
        """Write what is known by now of jobs that ended, the first few of them."""
        with self._guard:
            ended = list(self._ended.items())[:MOST_AT_ONCE]
        for key, (job, ended_s) in ended:
            found = self._energy_of(job.number or key)
            is_known = found is not None and found.nodes >= len(job.placed)
            with self._guard:
                entry = self._ended.pop(key, None)
                if not is_known and entry is not None and now_s - ended_s <= GIVE_UP_S:
                    self._ended[key] = entry  # behind the others
            if is_known and found is not None:
                self._annotate(job, found)

    def _work(self) -> None:
        while not self._stop.wait(EVERY_S):
            self.write(time.time())

    def _annotate(self, job: SlurmJob, found: JobEnergy) -> None:
        notes: dict[str, Any] = {
            "energy_j": round(found.energy_j, 1),
            "gpu_j": None if found.gpu_j is None else round(found.gpu_j, 1),
            "provenance": found.provenance,
        }
        self._log.add("energy", job=job.key, user=job.user, **notes)
        if not self.may_write:
            return
        text = noted(job.admin_comment, notes)
        try:
            try:
                self._client.update_job(update_words(job.key, {"AdminComment": text}))
            except SlurmAway:
                raise
            except SlurmError:  # it has ended: only the accounts can be changed
                self._client.note_in_accounts(job.number or job.key, text)
        except SlurmAway as error:
            self._log.add("warning", f"job {job.key}: energy not written: {error}")
        except SlurmError as error:
            self.may_write = False
            self._log.add(
                "warning",
                f"energy is not written into AdminComment: slurmctld takes none for ended jobs, "
                f"and {error}; it is in the store",
            )
