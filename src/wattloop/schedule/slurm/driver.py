"""Slurm driver: poll Slurm, reconcile, plan with the policy and execute the plan, each round."""

import math
import time

from wattloop.core.errors import SlurmAway, SlurmError
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.slurm.event_log import DriverLog, RoundReport
from wattloop.schedule.slurm.executor import BackOff, PlanExecutor, RoundExecutor
from wattloop.schedule.slurm.managed_cluster import DriverSettings, ManagedCluster
from wattloop.schedule.slurm.plan import Planned, planned
from wattloop.schedule.slurm.poller import Readings, Resite, SlurmPoller, no_readings
from wattloop.schedule.slurm.reconcile import Reconciler
from wattloop.schedule.slurm.reservation_gate import ReservationGate
from wattloop.schedule.slurm.scontrol import SlurmClient
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

    def _plan(self, snapshot: Snapshot, now_s: float, report: RoundReport) -> Planned | None:
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
        found, fault = planned(live, self.site, self.policy, within_s)
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
