"""Slurm driver: rounds of poll, reconcile, plan and execute, and the loop that runs them."""

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace

from wattloop.core.errors import SlurmAway, SlurmError
from wattloop.fleet.slurm_text import format_notes
from wattloop.schedule.driver.event_log import DriverLog, RoundReport
from wattloop.schedule.driver.inventory import SchedulerJob
from wattloop.schedule.driver.managed_cluster import DriverSettings, ManagedCluster
from wattloop.schedule.driver.planner import RoundPlan
from wattloop.schedule.driver.poller import Rebuild, Snapshot
from wattloop.schedule.driver.power_readings import Readings, no_readings
from wattloop.schedule.driver.rounds import RoundObserver, RoundRunner
from wattloop.schedule.driver.view import LiveView
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.slurm.client import SlurmClient, update_command
from wattloop.schedule.slurm.executor import (
    BackOff,
    JobControl,
    PlanExecutor,
    planned_release,
    release_fields,
)
from wattloop.schedule.slurm.reservation_gate import ReservationGate
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
        self._running: dict[str, SchedulerJob] = {}

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

    def _count_usage(self, running: Iterable[SchedulerJob], now_s: float) -> list[SchedulerJob]:
        """Add the GPU seconds of finished jobs to their users' usage; return the new jobs."""
        now, usage_s = {job.key: job for job in running}, self._state.use_gpu_s
        for key, was in self._running.items():
            if key not in now or now[key].start_s != was.start_s:
                gpu_s = sum(gpus for _, gpus in was.placed) * max(now_s - was.start_s, 0.0)
                usage_s[was.user] = usage_s.get(was.user, 0.0) + gpu_s
        new = [job for key, job in now.items() if key not in self._running]
        self._running = now
        return new


class SlurmDriver(RoundRunner):
    """Driver that runs a policy on a Slurm cluster. If it ends, Slurm schedules by itself again.

    Args:
        state: state file of this driver, locked by this process.
        owner: the user who runs it.
    """

    def __init__(
        self,
        client: SlurmClient,
        site: ManagedCluster,
        policy: Policy,
        *,
        state: DriverState,
        log: DriverLog,
        settings: DriverSettings,
        owner: str,
        readings: Readings = no_readings,
        rebuild: Rebuild | None = None,
    ) -> None:
        super().__init__(
            client, site, policy, log=log, settings=settings, readings=readings, rebuild=rebuild
        )
        self.state, self._slurm = state, client
        self._released, self._use_gpu_s = state.released, state.use_gpu_s
        self._standby_s = 2 * settings.interval_s + 1.0 if settings.standby else None
        nodes = ",".join(site.known.names)
        self.gate = ReservationGate(client, state.gate_name, nodes, owner, settings.lease_s)
        self._control, self._backoff = JobControl(client, state, log), BackOff()
        self._reconciler = Reconciler(state, log, self._control, self._backoff, settings.patience_s)
        self._executor = PlanExecutor(
            policy, state, log, self.gate, self._control, self._backoff, settings.most_openings
        )
        self._unpredicted_s: dict[str, float] = {}
        self._gated_s = float("inf")

    def begin(self) -> None:
        """Create the reservation and recover the state of this driver's last run.

        Raises:
            SlurmError: Slurm refuses, or another driver is running.
        """
        self.gate.ahead_s = self._slurm.ahead_s()
        if self.gate.ahead_s:
            self.log.add(
                "warning", f"slurmctld's clock is {self.gate.ahead_s:+.0f} s off the local clock"
            )
        others = self.gate.others()
        if others:
            raise SlurmError(
                f"Slurm: another driver holds these nodes with reservation {others[0]}; stop it, "
                "or wait: it ends by itself when its driver is gone"
            )
        self.gate.extend(each.user for each in self.state.released.values())
        self._gated_s = self._now_s()

    def round(self) -> RoundReport:
        try:
            report = super().round()
        except SlurmError:
            self.gate.doubt()
            raise
        self.state.save()
        return report

    def restore(self) -> None:
        """Restore all released jobs that have not started, and remove the reservation."""
        snapshot = self.poller.jobs(self.gate.name, self.state.released)
        self._control.clear_start_delays(snapshot.by_key)
        self._control.restore(self.state.released, snapshot.by_key)
        self.gate.remove()
        self._control.nudge(snapshot.waiting)
        self.state.save()

    def _now_s(self) -> float:
        return time.time() + self.gate.ahead_s

    def _poll(self) -> Snapshot:
        if self.gate.extend(self._executor.users()):
            self._gated_s = self._now_s()
        self._poll_nodes()
        return self.poller.jobs(self.gate.name, self.state.released)

    def _poll_nodes(self) -> None:
        """Add new nodes and drop removed ones. The reservation moves first."""
        found = self.poller.nodes()
        if self.poller.fault:
            self.log.add("warning", self.poller.fault)
            self.poller.fault = ""
        if found is None:
            return
        nodes = ",".join(found.known.names)
        try:
            self.gate.move(nodes)
        except SlurmAway:
            self.poller.query_nodes_again()
            raise
        except SlurmError as error:
            self.log.add("warning", f"nodes are now {nodes}, and are not taken in: {error}")
            return
        self.poller.site = found
        self._gated_s = self._now_s()
        self.log.add("nodes", f"nodes are now {nodes}")

    def _reconcile(self, now_s: float) -> None:
        self._reconciler.reconcile(self.snapshot, self.site, self._gated_s, now_s)
        self._control.clear_start_delays(self.snapshot.by_key)

    def _execute(self, plan: RoundPlan, live: LiveView, report: RoundReport) -> None:
        for refusal in plan.refusals:
            self.log.add("refused", refusal)
        self._executor.execute(plan, live, self.snapshot, self.site, report)

    def _set_aside(self, now_s: float) -> Mapping[str, float]:
        """Return jobs in back-off, and those whose model is predicted, up to `prediction_s`."""
        waiting = self.snapshot.waiting
        first_s = {job.key: self._unpredicted_s.get(job.key, now_s) for job in waiting}
        self._unpredicted_s = {
            job.key: first_s[job.key]
            for job in waiting
            if now_s - first_s[job.key] < self.settings.prediction_s
            and self.site.estimates.is_coming(job)
        }
        return {**self._backoff.until_s, **dict.fromkeys(self._unpredicted_s, math.inf)}


GATE_NAME = "wattloop_gate"
"""Reservation name in the shown commands."""


class SlurmObserver(RoundObserver):
    """Observer that asks a policy each round and changes nothing in Slurm."""

    def _execute(self, plan: RoundPlan, live: LiveView, report: RoundReport) -> None:
        commands: list[tuple[str, ...]] = []
        for number in plan.preempts:
            job = live.jobs[number]
            report.preempts.append(job.key)
            commands.append(("scontrol", "requeue", job.key))
            self.log.add("would-preempt", job=job.key, user=job.user)
        for start in plan.starts:
            job = live.jobs[start.job]
            release = planned_release(
                live, self.site, start, "start", before=None, sets_caps=self.policy.sets_caps
            )
            report.starts.append(job.key)
            fields = release_fields(release, job, GATE_NAME, None)
            commands.append(update_command(job.key, fields))
            if self.table.add(live, start):
                nodes = ",".join(release.nodes)
                self.log.add(
                    "would-start", job=job.key, user=job.user, nodes=nodes, gpus=release.gpus
                )
        for number, option in plan.recaps:
            job = live.jobs[number]
            cap_w = round(float(live.view.queue.options(number).cap_w[option]), 1)
            report.recaps.append(job.key)
            text = format_notes(job.admin_comment, {"cap_w": cap_w})
            commands.append(update_command(job.key, {"AdminComment": text}))
        self.commands = commands
