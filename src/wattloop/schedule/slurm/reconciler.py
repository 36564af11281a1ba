"""Reconciliation of released jobs with Slurm's queue; logs jobs started without a release."""

from collections.abc import Iterable
from dataclasses import replace

from wattloop.schedule.slurm.event_log import DriverLog
from wattloop.schedule.slurm.executor import BackOff, JobControl
from wattloop.schedule.slurm.managed_cluster import ManagedCluster
from wattloop.schedule.slurm.poller import Snapshot
from wattloop.schedule.slurm.squeue import SlurmJob
from wattloop.schedule.slurm.state import DriverState


class Reconciler:
    """Reconciler of the state file with Slurm's queue, at the start of each round.

    Args:
        patience_s: most time that a released job may wait.
    """

    def __init__(
        self,
        state: DriverState,
        log: DriverLog,
        control: JobControl,
        backoff: BackOff,
        patience_s: float,
    ) -> None:
        self._state, self._log, self._control = state, log, control
        self._backoff, self._patience_s = backoff, patience_s
        self._running: dict[str, SlurmJob] = {}

    def reconcile(
        self, snapshot: Snapshot, site: ManagedCluster, gated_s: float, now_s: float
    ) -> None:
        """Reconcile once; remove restored jobs and jobs released by others from the snapshot.

        `gated_s` is the time since which the reservation keeps Slurm from starting jobs by itself.
        """
        self._check_released(snapshot, now_s)
        if snapshot.unreleased:
            for job in snapshot.unreleased:
                message = f"job {job.key} of {job.user}: names the reservation without a release"
                self._log.add("refused", message, job=job.key)
            self._control.restore([job.key for job in snapshot.unreleased], snapshot.by_key)
            snapshot.unreleased.clear()
        for job in self._count_usage(snapshot.running, now_s):
            is_ours = job.partition in site.managed and job.key not in self._state.released
            if is_ours and job.start_s > gated_s + 1:
                message = f"job {job.key}: started without a release"
                self._log.add("warning", message, job=job.key, user=job.user)
        self._backoff.keep_only({job.key for job in snapshot.waiting})

    def _check_released(self, snapshot: Snapshot, now_s: float) -> None:
        released = self._state.released
        for key, each in list(released.items()):
            job = snapshot.by_key.get(key)
            if job is None:
                del released[key]
            elif job.has_machines:
                released[key] = replace(each, why="ran")
            elif each.why == "ran" and key not in self._state.preempting:
                self._log.add("warning", f"job {key}: is back in the queue", job=key)
                self._control.restore([key], snapshot.by_key)
            elif each.why == "start" and now_s - each.at_s > self._patience_s:
                wait_s = self._backoff.add(key, now_s)
                why = f"Slurm does not start it ({job.reason}); left out for {wait_s:g} s"
                self._log.add("refused", f"job {key}: {why}", job=key)
                self._control.restore([key], snapshot.by_key)
                snapshot.coming[:] = [other for other in snapshot.coming if other.key != key]

    def _count_usage(self, running: Iterable[SlurmJob], now_s: float) -> list[SlurmJob]:
        """Add the GPU seconds of finished jobs to their users' usage; return the new jobs."""
        now, usage_s = {job.key: job for job in running}, self._state.use_gpu_s
        for key, was in self._running.items():
            if key not in now or now[key].start_s != was.start_s:
                gpu_s = sum(gpus for _, gpus in was.placed) * max(now_s - was.start_s, 0.0)
                usage_s[was.user] = usage_s.get(was.user, 0.0) + gpu_s
        new = [job for key, job in now.items() if key not in self._running]
        self._running = now
        return new
