"""Rounds of a driver or an observer: poll, reconcile, plan and execute, and their loop."""

import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from wattloop.core.errors import ClusterError, WattloopError
from wattloop.schedule.driver.event_log import DriverLog, RoundReport
from wattloop.schedule.driver.inventory import ReleasedJob, SchedulerJob
from wattloop.schedule.driver.managed_cluster import DriverSettings, ManagedCluster
from wattloop.schedule.driver.planner import PlannedStart, RoundPlan, plan_round
from wattloop.schedule.driver.poller import QueueClient, QueuePoller, Rebuild, Snapshot
from wattloop.schedule.driver.power_readings import Readings, no_readings, power_now
from wattloop.schedule.driver.view import DelayRecord, LiveView, build_view
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.view import RealisedDelay

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
        self.poller = QueuePoller(client, site, settings.nodes_every_s, rebuild)
        self.snapshot = Snapshot()
        self.faults = 0
        self._readings = readings
        self._released: Mapping[str, ReleasedJob] = {}
        self._use_gpu_s: Mapping[str, float] = {}
        self._standby_s: float | None = None
        self._delays = DelayRecord(policy.references())

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
    def _execute(self, plan: RoundPlan, live: LiveView, report: RoundReport) -> None:
        """Carry out the plan, and enter what was done into the report."""

    def _set_aside(self, now_s: float) -> Mapping[str, float]:
        """Return jobs that are not offered to the policy, with the end of that."""
        del now_s
        return {}

    def _view(self, report: RoundReport) -> LiveView:
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
        live.view.delay = self._delay(live)
        report.waiting, report.running = len(live.view.queue), len(self.snapshot.running)
        report.coming, report.free_gpus = len(self.snapshot.coming), live.view.free.total
        report.view_s = time.perf_counter() - begun_s
        return live

    def _delay(self, live: LiveView) -> RealisedDelay | None:
        """Return the ages of the jobs, here and in the schedules of the policy's references."""
        try:
            return self._delays.update(live, self.snapshot, self.site)
        except Exception as error:  # noqa: BLE001 - an error of a reference must not stop the driver
            self.log.add("warning", f"the delay of jobs is unknown in this round: {error}")
            return None

    def _plan(self, live: LiveView, report: RoundReport) -> RoundPlan | None:
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


MOST_KEPT = 5_000


@dataclass(slots=True)
class PolicyDecision:
    """Policy's decision for one job, and Slurm's start of it.

    Attributes:
        would_s: time at which the policy would have started it, seconds since 1970; None before
                that, or when Slurm started it between two polls.
        nodes, gpus, cap_w: placement and cap; the cap is None where the policy sets none.
        time_s, gpu_energy_j: estimate for that placement (scope: its GPUs).
        source: source of the estimate.
        began_s: time at which Slurm started it; None before that.
    """

    key: str
    user: str
    name: str
    submit_s: float
    source: str = ""
    would_s: float | None = None
    nodes: tuple[str, ...] = ()
    gpus: int = 0
    cap_w: float | None = None
    time_s: float | None = None
    gpu_energy_j: float | None = None
    began_s: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


class DecisionTable:
    """Table of decisions by arrival; the oldest are dropped when there are many.

    Args:
        since_s: jobs that Slurm started earlier are not listed, seconds since 1970.
    """

    def __init__(self, site: ManagedCluster, *, sets_caps: bool, since_s: float) -> None:
        self.site, self._sets_caps, self._since_s = site, sets_caps, since_s
        self.rows: dict[str, PolicyDecision] = {}

    def update(self, snapshot: Snapshot) -> None:
        """Record jobs that wait or have started."""
        begun = [job for job in snapshot.running if job.start_s >= self._since_s]
        for job in (*snapshot.waiting, *begun):
            if job.key not in self.rows:
                source = self.site.estimates.estimate(job).source.value
                self.rows[job.key] = PolicyDecision(
                    job.key, job.user, job.name, job.submit_s, source
                )
        for job in snapshot.running:
            row = self.rows.get(job.key)
            if row is not None and row.began_s is None:
                row.began_s = job.start_s
        while len(self.rows) > MOST_KEPT:
            del self.rows[next(iter(self.rows))]

    def add(self, live: LiveView, start: PlannedStart) -> bool:
        """Record that the policy would start a job now; return True the first time."""
        row = self.rows.get(live.jobs[start.job].key)
        if row is None or row.would_s is not None:
            return False
        queue = live.view.queue
        work = live.view.running[start.job].work_at_start
        estimates = queue.estimates_for(start.job, work)
        row.would_s = live.view.now_s
        row.nodes = tuple(self.site.known.names[node] for node, _ in start.nodes)
        row.gpus = int(estimates.gpus[start.option])
        if self._sets_caps:
            row.cap_w = float(estimates.options.cap_w[start.option])
        row.time_s = float(estimates.time_s[start.option])
        row.gpu_energy_j = row.time_s * float(estimates.power_w[start.option])
        return True


class RoundObserver(RoundRunner):
    """Observer that asks a policy each round and changes nothing in the cluster.

    Attributes:
        commands: commands that a driver would have run in the last round.
    """

    commands: Sequence[tuple[str, ...]] = ()

    def _delay(self, live: LiveView) -> RealisedDelay | None:
        """Return None: these jobs are late or early by another scheduler's decisions."""
        del live
        return None

    @cached_property
    def table(self) -> DecisionTable:
        """Return the decisions of the policy since the first round."""
        return DecisionTable(self.site, sets_caps=self.policy.sets_caps, since_s=time.time())

    def _poll(self) -> Snapshot:
        site = self.poller.nodes()
        if site is not None:
            self.poller.site = self.table.site = site
        return self.poller.jobs("", {})

    def _reconcile(self, now_s: float) -> None:
        self.table.update(self.snapshot)


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

    def count_changes(self, jobs: Mapping[str, SchedulerJob], now_s: float) -> None:
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
