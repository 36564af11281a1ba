"""Reconciliation of released jobs with Slurm's queue; logs jobs started without a release."""

from collections.abc import Iterable
from dataclasses import replace

from wattloop.schedule.slurm.event_log import DriverLog
from wattloop.schedule.slurm.executor import BackOff, PlanExecutor
from wattloop.schedule.slurm.managed_cluster import ManagedCluster
from wattloop.schedule.slurm.squeue import SlurmJob
from wattloop.schedule.slurm.state import DriverState
from wattloop.schedule.slurm.view import Snapshot


class UsageLedger:
    """Ledger of the GPU seconds of each user's finished jobs."""

    def __init__(self) -> None:
        self._seen: dict[str, SlurmJob] = {}

    def look(
        self, running: Iterable[SlurmJob], use_gpu_s: dict[str, float], now_s: float
    ) -> list[SlurmJob]:
        """Add jobs finished since the last call to `use_gpu_s`; return the new jobs."""
        now = {job.key: job for job in running}
        for key, was in self._seen.items():
            if key not in now or now[key].start_s != was.start_s:
                gpu_s = sum(gpus for _, gpus in was.placed) * max(now_s - was.start_s, 0.0)
                use_gpu_s[was.user] = use_gpu_s.get(was.user, 0.0) + gpu_s
        new = [job for key, job in now.items() if key not in self._seen]
        self._seen = now
        return new


class Reconciler:
    """Reconciler of the state file with Slurm's queue, at the start of each round.

    Args:
        state: state file of the driver.
        log: receives warnings.
        carrying_out: executor that restores jobs.
        backoff: jobs that Slurm does not start.
        patience_s: most time that a released job may wait.
    """

    def __init__(
        self,
        state: DriverState,
        log: DriverLog,
        carrying_out: PlanExecutor,
        backoff: BackOff,
        patience_s: float,
    ) -> None:
        self._state, self._log, self._carrying_out = state, log, carrying_out
        self._backoff, self._patience_s = backoff, patience_s
        self._uses = UsageLedger()

    def look(self, snapshot: Snapshot, site: ManagedCluster, gated_s: float, now_s: float) -> None:
        """Reconcile once; remove restored jobs and jobs released by others from the snapshot.

        Args:
            snapshot: the jobs.
            site: the managed cluster.
            gated_s: time since which the reservation keeps Slurm from starting jobs by itself.
            now_s: seconds since 1970.
        """
        self._opened(snapshot, now_s)
        if snapshot.strangers:
            for job in snapshot.strangers:
                said = f"job {job.key} of {job.user}: names the reservation without a release"
                self._log.add("refused", said, job=job.key)
            self._carrying_out.close([job.key for job in snapshot.strangers], snapshot.by_key)
            snapshot.strangers.clear()
        for job in self._uses.look(snapshot.running, self._state.use_gpu_s, now_s):
            is_ours = job.partition in site.managed and job.key not in self._state.opened
            if is_ours and job.start_s > gated_s + 1:
                said = f"job {job.key}: started without a release"
                self._log.add("warning", said, job=job.key, user=job.user)
        waiting = {job.key for job in snapshot.waiting}
        self._backoff.forget_all_but(snapshot.by_key.keys() & waiting)

    def _opened(self, snapshot: Snapshot, now_s: float) -> None:
        jobs, opened = snapshot.by_key, self._state.opened
        for key, each in list(opened.items()):
            job = jobs.get(key)
            if job is None:
                del opened[key]
            elif job.has_machines:
                opened[key] = replace(each, why="ran")
            elif each.why == "ran" and key not in self._state.preempting:
                self._log.add("warning", f"job {key}: is back in the queue", job=key)
                self._carrying_out.close([key], jobs)
            elif each.why == "start" and now_s - each.at_s > self._patience_s:
                self._take_back(job, snapshot, now_s)

    def _take_back(self, job: SlurmJob, snapshot: Snapshot, now_s: float) -> None:
        wait_s = self._backoff.add(job.key, now_s)
        said = f"job {job.key}: Slurm does not start it ({job.reason}); left out for {wait_s:g} s"
        self._log.add("refused", said, job=job.key)
        self._carrying_out.close([job.key], {job.key: job})
        snapshot.coming[:] = [each for each in snapshot.coming if each.key != job.key]
