"""Slurm driver: rounds of poll, reconcile, plan and execute, and the loop that runs them."""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from wattloop.core.errors import SlurmAway, SlurmError, WattloopError
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.slurm.client import SlurmClient
from wattloop.schedule.slurm.event_log import DriverLog, RoundReport
from wattloop.schedule.slurm.executor import BackOff, PlanExecutor, RoundExecutor
from wattloop.schedule.slurm.managed_cluster import DriverSettings, ManagedCluster
from wattloop.schedule.slurm.planner import PlannedRound, plan_round
from wattloop.schedule.slurm.poller import Readings, Resite, SlurmPoller, no_readings
from wattloop.schedule.slurm.reconciler import Reconciler
from wattloop.schedule.slurm.reservation_gate import ReservationGate
from wattloop.schedule.slurm.squeue import SlurmJob
from wattloop.schedule.slurm.state import DriverState
from wattloop.schedule.slurm.view import Snapshot


class SlurmDriver:
    """Driver that runs a policy on a Slurm cluster. If it ends, Slurm schedules by itself again.

    Args:
        client: Slurm.
        site: the managed cluster.
        policy: the scheduling policy.
        state: state file of this driver, locked by this process.
        log: receives actions and refusals.
        settings: intervals and limits.
        owner: the user who runs it.
        readings: measured power of nodes, by node number.
        resite: rebuilds the managed cluster when nodes have changed; None continues with `site`.
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
        resite: Resite | None = None,
    ) -> None:
        self.client, self.policy = client, policy
        self.state, self.log, self.settings = state, log, settings
        nodes = ",".join(site.known.names)
        self.gate = ReservationGate(
            client, state.gate_name, nodes, owner, settings.lease_s, now_s=time.monotonic
        )
        site.believed.on_refusal = log.add_refusal
        self._looking = SlurmPoller(client, site, readings, settings.nodes_every_s, resite)
        self._backoff = BackOff()
        self._carrying_out = carrying_out = PlanExecutor(client, state, log, state.gate_name)
        self._noticing = Reconciler(state, log, carrying_out, self._backoff, settings.patience_s)
        self._acting = RoundExecutor(
            policy, state, log, self.gate, carrying_out, self._backoff, settings.most_openings
        )
        self._unknown_s: dict[str, float] = {}
        self._gated_s = float("inf")
        self.faults = 0
        self.snapshot = Snapshot()

    @property
    def site(self) -> ManagedCluster:
        return self._looking.site

    def begin(self) -> None:
        """Create the reservation and recover the state of this driver's last run.

        Raises:
            SlurmError: Slurm refuses, or another driver is running.
        """
        self.gate.ahead_s = self.client.ahead_s()
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
        self.gate.keep(each.user for each in self.state.opened.values())
        self._gated_s = time.time() + self.gate.ahead_s

    def round(self) -> RoundReport:
        """Poll, reconcile, plan and execute once.

        Raises:
            SlurmError: Slurm does not answer, or its answer is invalid.
        """
        try:
            return self._round()
        except SlurmError:
            self.gate.doubt()
            raise

    def _round(self) -> RoundReport:
        report, calls = RoundReport(), sum(self.client.commands.calls.values())
        begun_s = time.perf_counter()
        if self.gate.keep(self._acting.users()):
            self._gated_s = time.time() + self.gate.ahead_s
        self._look_at_nodes()
        self.snapshot = snapshot = self._looking.jobs(self.gate.name, self.state.opened)
        report.at_s = now_s = time.time() + self.gate.ahead_s
        self._noticing.look(snapshot, self.site, self._gated_s, now_s)
        self._carrying_out.set_free(snapshot.by_key)
        report.read_s = time.perf_counter() - begun_s
        plan = self._plan(snapshot, now_s, report)
        begun_s = time.perf_counter()
        if plan is not None:
            self._acting.carry_out(plan, snapshot, self.site, now_s, report)
        report.carry_s = time.perf_counter() - begun_s
        report.calls = sum(self.client.commands.calls.values()) - calls
        self.state.save()
        return report

    def step_back(self) -> None:
        """Restore all released jobs that have not started, and remove the reservation."""
        snapshot = self._looking.jobs(self.gate.name, self.state.opened)
        self._carrying_out.set_free(snapshot.by_key)
        self._carrying_out.close(list(self.state.opened), snapshot.by_key)
        self.gate.remove()
        self._carrying_out.nudge(snapshot.waiting)
        self.state.save()

    def _look_at_nodes(self) -> None:
        """Add new nodes and drop removed ones. The reservation moves first."""
        found = self._looking.nodes()
        if self._looking.fault:
            self.log.add("warning", self._looking.fault)
            self._looking.fault = ""
        if found is None:
            return
        nodes = ",".join(found.known.names)
        try:
            self.gate.move(nodes)
        except SlurmAway:
            self._looking.ask_again()
            raise
        except SlurmError as error:
            self.log.add("warning", f"nodes are now {nodes}, and are not taken in: {error}")
            return
        self._looking.site = found
        self._gated_s = time.time() + self.gate.ahead_s
        self.log.add("nodes", f"nodes are now {nodes}")

    def _plan(self, snapshot: Snapshot, now_s: float, report: RoundReport) -> PlannedRound | None:
        begun_s = time.perf_counter()
        live = self._looking.view(
            snapshot,
            opened=self.state.opened,
            use_gpu_s=self.state.use_gpu_s,
            set_aside={**self._backoff.until_s, **self._unknown(snapshot, now_s)},
            now_s=now_s,
            report=report,
        )
        report.view_s = time.perf_counter() - begun_s
        begun_s = time.perf_counter()
        within_s = 2 * self.settings.interval_s + 1.0 if self.settings.standby else None
        found, fault = plan_round(live, self.site, self.policy, within_s)
        report.policy_s = time.perf_counter() - begun_s
        if fault:
            self.faults += 1
            report.fault = fault
            self.log.add("fault", f"policy {self.policy.name}: {fault}; this round does nothing")
            return None
        assert found is not None
        self.faults = 0
        report.refusals = found.plan.refusals
        report.short_of_power, report.wake_s = found.plan.short_of_power, found.plan.wake_s
        for refusal in found.plan.refusals:
            self.log.add("refused", refusal)
        return found

    def _unknown(self, snapshot: Snapshot, now_s: float) -> dict[str, float]:
        """Return jobs whose model is still being predicted, up to `prediction_s`."""
        first_s = {job.key: self._unknown_s.get(job.key, now_s) for job in snapshot.waiting}
        self._unknown_s = {
            job.key: first_s[job.key]
            for job in snapshot.waiting
            if now_s - first_s[job.key] < self.settings.prediction_s
            and self.site.believed.is_coming(job)
        }
        return dict.fromkeys(self._unknown_s, math.inf)


HASTE = 5.0
"""Most rounds per configured interval."""
LOOK_BACK_S = 5.0
SHARE = 1 / 3
"""Share of the time that rounds may take while jobs arrive and finish."""
IDLE_SHARE = 0.1
"""Share of the time that rounds may take while no job waits and GPUs are free."""


class RoundInterval:
    """Adaptive interval between rounds.

    The configured interval applies while nothing happens. While jobs arrive, start and finish, the
    interval follows their rate, because a GPU freed by a one-second job would otherwise idle as
    long
    as that job ran. With free GPUs and an empty queue a round is cheap, and a newly submitted job
    would wait for it.

    Args:
        longest_s: configured interval.
    """

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._seen: dict[str, bool] | None = None
        self._changes: deque[tuple[float, int]] = deque()

    def look(self, jobs: Mapping[str, SlurmJob], now_s: float) -> None:
        """Count the changes since the last call.

        Args:
            jobs: all jobs, by key.
            now_s: monotonic time.
        """
        seen = {key: job.has_machines for key, job in jobs.items()}
        if self._seen is not None:
            # Jobs that arrived, started or left the queue.
            changed = len(seen.items() ^ self._seen.items())
            changed -= sum(key in seen and seen[key] != had for key, had in self._seen.items())
            self._changes.append((now_s, changed))
        self._seen = seen
        while self._changes and self._changes[0][0] < now_s - LOOK_BACK_S:
            self._changes.popleft()

    def every_s(self, report: RoundReport, took_s: float) -> float:
        """Return the time from the start of the last round to the start of the next.

        Args:
            report: report of the last round.
            took_s: duration of the last round.
        """
        changes = sum(count for _, count in self._changes)
        wanted_s = LOOK_BACK_S / changes if changes else self._longest_s
        least_s = took_s / SHARE
        if not report.waiting and not report.coming and report.free_gpus:
            idle_s = max(self._longest_s / HASTE, took_s / IDLE_SHARE)
            wanted_s = min(wanted_s, idle_s)
        return min(max(wanted_s, least_s, self._longest_s / HASTE), self._longest_s)


T = TypeVar("T")
LONGEST_WAIT_S = 15.0
GIVE_UP_UNDOING_S = 30.0
MOST_REFUSALS = 5


class RoundRunner(Protocol):
    """Interface of a driver or an observer."""

    policy: Policy
    log: DriverLog
    settings: DriverSettings
    faults: int
    snapshot: Snapshot

    def begin(self) -> None:
        """Prepare the first round."""

    def round(self) -> RoundReport:
        """Run one round."""

    def step_back(self) -> None:
        """Restore Slurm after the last round."""


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

    Args:
        driver: driver or observer.
        stop: event that ends the loop.
        rounds: number of rounds; None for no limit.
        on_round: called after each round.

    Raises:
        Ended: the policy failed too often.
        SlurmError: Slurm refuses the setup.
    """
    _patiently(driver, stop, driver.begin)
    try:
        done, pace = 0, RoundInterval(driver.settings.interval_s)
        while not stop.is_set() and (rounds is None or done < rounds):
            begun_s = time.monotonic()
            report = _patiently(driver, stop, driver.round, MOST_REFUSALS)
            if report is None:
                break
            done += 1
            on_round(report)
            if driver.faults >= driver.settings.most_faults:
                raise DriverStopped(
                    f"policy {driver.policy.name} failed {driver.faults} times in a row "
                    f"({report.fault}); the driver has stopped and Slurm schedules by itself again"
                )
            pace.look(driver.snapshot.by_key, begun_s)
            took_s = time.monotonic() - begun_s
            wait_s = pace.every_s(report, took_s) - took_s
            wait_s = min(wait_s, report.wake_s - time.time())
            stop.wait(max(wait_s, 0.02))
    finally:
        _undo(driver)


def _patiently(
    driver: RoundRunner, stop: threading.Event, do: Callable[[], T], refusals: int = 0
) -> T | None:
    """Call `do` as soon as Slurm answers; None when stopped before.

    Args:
        driver: driver whose log is used.
        stop: event that ends the loop.
        do: function to call.
        refusals: consecutive refusals by Slurm after which the error is raised.
    """
    wait_s, is_away, refused = driver.settings.interval_s, False, 0
    while not stop.is_set():
        try:
            found = do()
        except SlurmError as error:
            refused += not isinstance(error, SlurmAway)
            if refused > refusals:
                raise
            if not is_away:
                driver.log.add("away", f"{error}; waiting")
                is_away = True
            stop.wait(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
            continue
        if is_away:
            driver.log.add("back", "Slurm answers again")
        return found
    return None


def _undo(driver: RoundRunner) -> None:
    """Restore Slurm. If Slurm does not answer, the reservation still expires by itself."""
    give_up_s = time.monotonic() + GIVE_UP_UNDOING_S
    while True:
        try:
            driver.step_back()
        except SlurmError as error:
            if time.monotonic() < give_up_s and isinstance(error, SlurmAway):
                time.sleep(1.0)
                continue
            lease_s = driver.settings.lease_s
            said = f"not all jobs restored: {error}; the reservation expires within {lease_s:g} s"
            driver.log.add("warning", said)
        else:
            driver.log.add("stopped", "Slurm schedules by itself again")
        return
