"""Slurm driver: rounds of poll, reconcile, plan and execute, and the loop that runs them."""

import math
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from wattloop.core.errors import ClusterError, SlurmAway, SlurmError, WattloopError
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.slurm.client import SlurmClient
from wattloop.schedule.slurm.event_log import DriverLog, RoundReport
from wattloop.schedule.slurm.executor import BackOff, JobControl, PlanExecutor
from wattloop.schedule.slurm.managed_cluster import DriverSettings, ManagedCluster
from wattloop.schedule.slurm.planner import RoundPlan, plan_round
from wattloop.schedule.slurm.poller import QueueClient, Rebuild, SlurmPoller, Snapshot
from wattloop.schedule.slurm.power import Readings, no_readings, power_now
from wattloop.schedule.slurm.reservation_gate import ReservationGate
from wattloop.schedule.slurm.squeue import SlurmJob
from wattloop.schedule.slurm.state import DriverState, ReleasedJob
from wattloop.schedule.slurm.view import SlurmView, build_view


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


T = TypeVar("T")
HASTE = 5.0
"""Most rounds per configured interval."""
CHANGES_OVER_S = 5.0
SHARE = 1 / 3
"""Share of the time that rounds may take while jobs arrive and finish."""
IDLE_SHARE = 0.1
"""Share of the time that rounds may take while no job waits and GPUs are free."""
LONGEST_WAIT_S = 15.0
GIVE_UP_RESTORING_S = 30.0
MOST_REFUSALS = 5


class RoundRunner(ABC):
    """Rounds of a policy on a cluster: base of the drivers and of the observers.

    Args:
        readings: measured power of nodes, by node number.
        rebuild: rebuilds the managed cluster when nodes have changed; None continues with `site`.
    """

    scheduler = "Slurm"

    def __init__(
        self,
        client: QueueClient,
        site: ManagedCluster,
        policy: Policy,
        *,
        log: DriverLog,
        settings: DriverSettings,
        readings: Readings = no_readings,
        rebuild: Rebuild | None = None,
    ) -> None:
        self.client, self.policy = client, policy
        self.log, self.settings = log, settings
        site.estimates.on_refusal = log.add_refusal
        self.poller = SlurmPoller(client, site, settings.nodes_every_s, rebuild)
        self.snapshot = Snapshot()
        self.faults = 0
        self._readings = readings
        self._released: Mapping[str, ReleasedJob] = {}
        self._use_gpu_s: Mapping[str, float] = {}
        self._standby_s: float | None = None

    @property
    def site(self) -> ManagedCluster:
        return self.poller.site

    def begin(self) -> None:
        """Prepare the first round."""

    def restore(self) -> None:
        """Restore the cluster after the last round."""

    def round(self) -> RoundReport:
        """Poll, reconcile, plan and execute once."""
        report, calls = RoundReport(), self.client.total_calls
        begun_s = time.perf_counter()
        self.snapshot = self._poll()
        report.at_s = self._now_s()
        self._reconcile(report.at_s)
        report.read_s = time.perf_counter() - begun_s
        live = self._view(report)
        plan = self._plan(live, report)
        begun_s = time.perf_counter()
        if plan is not None:
            self._execute(plan, live, report)
        report.carry_s = time.perf_counter() - begun_s
        report.calls = self.client.total_calls - calls
        return report

    def _now_s(self) -> float:
        """Return the time on slurmctld's clock, seconds since 1970."""
        return time.time()

    @abstractmethod
    def _poll(self) -> Snapshot:
        """Read the queue, and nodes that have changed."""

    @abstractmethod
    def _reconcile(self, now_s: float) -> None:
        """Compare the snapshot with what earlier rounds did."""

    @abstractmethod
    def _execute(self, plan: RoundPlan, live: SlurmView, report: RoundReport) -> None:
        """Carry out the plan, and enter what was done into the report."""

    def _set_aside(self, now_s: float) -> Mapping[str, float]:
        """Return jobs that are not offered to the policy, with the end of that."""
        del now_s
        return {}

    def _view(self, report: RoundReport) -> SlurmView:
        """Build the view for the policy and enter its figures into the report."""
        begun_s = time.perf_counter()
        live = build_view(
            self.snapshot,
            self.site,
            is_up=self.poller.is_up,
            released=self._released,
            use_gpu_s=self._use_gpu_s,
            now_s=report.at_s,
            set_aside=self._set_aside(report.at_s),
        )
        power = power_now(live, self._readings(self.site.known))
        report.power_w, report.measured_nodes = power.watts, power.measured_nodes
        report.budget_w = self.site.budget_w.at(report.at_s)
        live.view.power_w = power.under(report.budget_w)
        report.waiting, report.running = len(live.view.queue), len(self.snapshot.running)
        report.coming, report.free_gpus = len(self.snapshot.coming), live.view.free.total
        report.view_s = time.perf_counter() - begun_s
        return live

    def _plan(self, live: SlurmView, report: RoundReport) -> RoundPlan | None:
        """Ask the policy; None when it fails."""
        begun_s = time.perf_counter()
        try:
            plan = plan_round(live, self.site, self.policy, self._standby_s)
        except Exception as error:  # noqa: BLE001 - an error of a policy must not stop the driver
            self.faults += 1
            report.fault = f"{type(error).__name__}: {error}"
            message = f"policy {self.policy.name}: {report.fault}; this round does nothing"
            self.log.add("fault", message)
            return None
        finally:
            report.policy_s = time.perf_counter() - begun_s
        self.faults = 0
        report.refusals = plan.refusals
        report.short_of_power, report.wake_s = plan.short_of_power, plan.wake_s
        return plan


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

    def _execute(self, plan: RoundPlan, live: SlurmView, report: RoundReport) -> None:
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


class RoundInterval:
    """Adaptive interval between rounds.

    The configured interval applies while nothing happens. While jobs arrive, start and finish, the
    interval follows their rate, because a GPU freed by a one-second job would otherwise idle as
    long as that job ran. With free GPUs and an empty queue a round is cheap, and a newly submitted
    job would wait for it.
    """

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._seen: dict[str, bool] | None = None
        self._changes: deque[tuple[float, int]] = deque()

    def count_changes(self, jobs: Mapping[str, SlurmJob], now_s: float) -> None:
        """Count the changes since the last call; `now_s` is monotonic time."""
        seen = {key: job.has_machines for key, job in jobs.items()}
        if self._seen is not None:
            # Jobs that arrived, started or left the queue.
            changed = len(seen.items() ^ self._seen.items())
            changed -= sum(key in seen and seen[key] != had for key, had in self._seen.items())
            self._changes.append((now_s, changed))
        self._seen = seen
        while self._changes and self._changes[0][0] < now_s - CHANGES_OVER_S:
            self._changes.popleft()

    def every_s(self, report: RoundReport, took_s: float) -> float:
        """Return the time from the start of the last round, which took `took_s`, to the next."""
        changes = sum(count for _, count in self._changes)
        wanted_s = CHANGES_OVER_S / changes if changes else self._longest_s
        least_s = took_s / SHARE
        if not report.waiting and not report.coming and report.free_gpus:
            idle_s = max(self._longest_s / HASTE, took_s / IDLE_SHARE)
            wanted_s = min(wanted_s, idle_s)
        return min(max(wanted_s, least_s, self._longest_s / HASTE), self._longest_s)


class DriverStopped(WattloopError):
    """Error raised when the driver stops by itself; the message gives the reason."""


def run_loop(
    driver: RoundRunner,
    stop: threading.Event,
    *,
    rounds: int | None = None,
    on_round: Callable[[RoundReport], None] = lambda report: None,
) -> None:
    """Run rounds until stopped, then restore all released jobs that have not started.

    Raises:
        DriverStopped: the policy failed too often.
        ClusterError: the scheduler refuses the setup.
    """
    _retry(driver, stop, driver.begin)
    try:
        done, interval = 0, RoundInterval(driver.settings.interval_s)
        while not stop.is_set() and (rounds is None or done < rounds):
            begun_s = time.monotonic()
            report = _retry(driver, stop, driver.round, MOST_REFUSALS)
            if report is None:
                break
            done += 1
            on_round(report)
            if driver.faults >= driver.settings.most_faults:
                raise DriverStopped(
                    f"policy {driver.policy.name} failed {driver.faults} times in a row "
                    f"({report.fault}); the driver has stopped and "
                    f"{driver.scheduler} schedules by itself again"
                )
            interval.count_changes(driver.snapshot.by_key, begun_s)
            took_s = time.monotonic() - begun_s
            wait_s = interval.every_s(report, took_s) - took_s
            wait_s = min(wait_s, report.wake_s - time.time())
            stop.wait(max(wait_s, 0.02))
    finally:
        _restore(driver)


def _retry(
    driver: RoundRunner, stop: threading.Event, do: Callable[[], T], refusals: int = 0
) -> T | None:
    """Call `do` as soon as the scheduler answers; None when stopped before.

    The error is raised after more than `refusals` refusals.
    """
    wait_s, is_away, refused = driver.settings.interval_s, False, 0
    while not stop.is_set():
        try:
            found = do()
        except ClusterError as error:
            refused += not error.is_away
            if refused > refusals:
                raise
            if not is_away:
                driver.log.add("away", f"{error}; waiting")
                is_away = True
            stop.wait(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
            continue
        if is_away:
            driver.log.add("back", f"{driver.scheduler} answers again")
        return found
    return None


def _restore(driver: RoundRunner) -> None:
    """Restore the cluster. If it does not answer, its reservation or lease expires by itself."""
    give_up_s = time.monotonic() + GIVE_UP_RESTORING_S
    while True:
        try:
            driver.restore()
        except ClusterError as error:
            if time.monotonic() < give_up_s and error.is_away:
                time.sleep(1.0)
                continue
            lease_s = driver.settings.lease_s
            message = f"not all jobs restored: {error}"
            driver.log.add("warning", f"{message}; they are within {lease_s:g} s")
        else:
            driver.log.add("stopped", f"{driver.scheduler} schedules by itself again")
        return
