"""Read-only observer: a policy's decisions compared with what Slurm did."""

import time
from dataclasses import dataclass
from typing import Any

from wattloop.schedule.policies.base import Policy
from wattloop.schedule.slurm.client import SlurmClient, update_words
from wattloop.schedule.slurm.event_log import DriverLog, RoundReport
from wattloop.schedule.slurm.executor import planned_release, release_fields
from wattloop.schedule.slurm.managed_cluster import DriverSettings, ManagedCluster
from wattloop.schedule.slurm.planner import PlannedRound, PlannedStart, plan_round
from wattloop.schedule.slurm.poller import Readings, Resite, SlurmPoller, no_readings
from wattloop.schedule.slurm.squeue import format_notes
from wattloop.schedule.slurm.view import SlurmView, Snapshot

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
        site: the managed cluster.
        sets_caps: the policy chooses power limits.
        since_s: jobs that Slurm started earlier are not listed, seconds since 1970.
    """

    def __init__(self, site: ManagedCluster, *, sets_caps: bool, since_s: float) -> None:
        self.site, self._sets_caps, self._since_s = site, sets_caps, since_s
        self.rows: dict[str, PolicyDecision] = {}

    def look(self, snapshot: Snapshot) -> None:
        """Record jobs that wait or have started."""
        begun = [job for job in snapshot.running if job.start_s >= self._since_s]
        for job in (*snapshot.waiting, *begun):
            if job.key not in self.rows:
                said = self.site.believed.of(job)
                self.rows[job.key] = PolicyDecision(
                    job.key, job.user, job.name, job.submit_s, said.source.value
                )
        for job in snapshot.running:
            row = self.rows.get(job.key)
            if row is not None and row.began_s is None:
                row.began_s = job.start_s
        while len(self.rows) > MOST_KEPT:
            del self.rows[next(iter(self.rows))]

    def add(self, live: SlurmView, start: PlannedStart) -> bool:
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


class SlurmObserver:
    """Observer that asks a policy each round and changes nothing in Slurm.

    Args:
        client: Slurm.
        site: the managed cluster.
        policy: the scheduling policy.
        log: receives the policy's decisions.
        settings: intervals and limits.
        gate_name: reservation name in the shown commands.
        readings: measured power of nodes, by node number.
        resite: rebuilds the managed cluster when nodes have changed; None continues with
            `site`.

    Attributes:
        table: decisions of the policy.
        commands: commands that a driver would have run in the last round.
    """

    def __init__(
        self,
        client: SlurmClient,
        site: ManagedCluster,
        policy: Policy,
        *,
        log: DriverLog,
        settings: DriverSettings,
        gate_name: str = "wattloop_gate",
        readings: Readings = no_readings,
        resite: Resite | None = None,
    ) -> None:
        self.client, self.policy = client, policy
        self.log, self.settings = log, settings
        self._gate_name = gate_name
        site.believed.on_refusal = log.add_refusal
        self._looking = SlurmPoller(client, site, readings, settings.nodes_every_s, resite)
        self.table = DecisionTable(site, sets_caps=policy.sets_caps, since_s=time.time())
        self.commands: list[tuple[str, ...]] = []
        self.faults = 0
        self.snapshot = Snapshot()

    @property
    def site(self) -> ManagedCluster:
        return self._looking.site

    def begin(self) -> None:
        """Do nothing: an observer needs no setup."""

    def step_back(self) -> None:
        """Do nothing: an observer has changed nothing."""

    def round(self) -> RoundReport:
        """Poll Slurm and ask the policy.

        Raises:
            SlurmError: Slurm does not answer.
        """
        report, calls = RoundReport(), sum(self.client.commands.calls.values())
        begun_s = time.perf_counter()
        found_site = self._looking.nodes()
        if found_site is not None:
            self._looking.site = self.table.site = found_site
        self.snapshot = snapshot = self._looking.jobs("", {})
        report.at_s = now_s = time.time()
        report.read_s = time.perf_counter() - begun_s
        begun_s = time.perf_counter()
        self.table.look(snapshot)
        live = self._looking.view(
            snapshot, opened={}, use_gpu_s={}, set_aside={}, now_s=now_s, report=report
        )
        report.view_s = time.perf_counter() - begun_s
        begun_s = time.perf_counter()
        found, fault = plan_round(live, self.site, self.policy, None)
        report.policy_s = time.perf_counter() - begun_s
        report.calls = sum(self.client.commands.calls.values()) - calls
        if found is None:
            self.faults += 1
            report.fault = fault
            self.log.add("fault", f"policy {self.policy.name}: {fault}")
            return report
        self.faults = 0
        report.wake_s, report.refusals = found.plan.wake_s, found.plan.refusals
        report.short_of_power = found.plan.short_of_power
        self._note(found, report)
        return report

    def _note(self, found: PlannedRound, report: RoundReport) -> None:
        live, plan = found.live, found.plan
        self.commands = []
        for number in plan.preempts:
            job = live.jobs[number]
            report.preempts.append(job.key)
            self.commands.append(("scontrol", "requeue", job.key))
            self.log.add("would-preempt", job=job.key, user=job.user)
        for start in plan.starts:
            job = live.jobs[start.job]
            wanted = planned_release(
                live, self.site, start, "start", before=None, sets_caps=self.policy.sets_caps
            )
            report.starts.append(job.key)
            fields = release_fields(wanted, job, self._gate_name, None)
            self.commands.append(update_words(job.key, fields))
            if self.table.add(live, start):
                nodes = ",".join(wanted.nodes)
                self.log.add(
                    "would-start", job=job.key, user=job.user, nodes=nodes, gpus=wanted.gpus
                )
        for number, option in plan.recaps:
            job = live.jobs[number]
            cap_w = round(float(live.view.queue.options(number).cap_w[option]), 1)
            report.recaps.append(job.key)
            text = format_notes(job.admin_comment, {"cap_w": cap_w})
            self.commands.append(update_words(job.key, {"AdminComment": text}))
