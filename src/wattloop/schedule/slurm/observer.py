"""A policy that only looks: what it would do, and the commands that would do it."""

import time

from wattloop.schedule.policies.policy import Policy
from wattloop.schedule.slurm.admin_comment import noted
from wattloop.schedule.slurm.client import SlurmClient, update_words
from wattloop.schedule.slurm.event_log import EventLog
from wattloop.schedule.slurm.looking import Looking, Readings, Resite, no_readings
from wattloop.schedule.slurm.opening import open_fields, wanted_start
from wattloop.schedule.slurm.planning import Planned, planned
from wattloop.schedule.slurm.round_report import RoundReport
from wattloop.schedule.slurm.settings import DriverSettings
from wattloop.schedule.slurm.site import Site
from wattloop.schedule.slurm.snapshot import Snapshot
from wattloop.schedule.slurm.would_have import WouldHaveTable

__all__ = ["SlurmObserver"]


class SlurmObserver:
    """Rounds that change nothing.

    Args:
        client: Slurm.
        site: what is ours of it.
        policy: who would decide.
        log: what it would do.
        settings: times and bounds.
        gate_name: for the commands that are shown.
        readings: power that nodes report, by node number.
        resite: what is ours when nodes have changed; None to go on with those of `site`.

    Attributes:
        table: what the policy would have done.
        commands: of the last round, as a driver would run them.
    """

    def __init__(
        self,
        client: SlurmClient,
        site: Site,
        policy: Policy,
        *,
        log: EventLog,
        settings: DriverSettings,
        gate_name: str = "wattloop_gate",
        readings: Readings = no_readings,
        resite: Resite | None = None,
    ) -> None:
        self.client, self.policy = client, policy
        self.log, self.settings = log, settings
        self._gate_name = gate_name
        site.believed.on_refusal = log.add_refusal
        self._looking = Looking(client, site, readings, settings.nodes_every_s, resite)
        self.table = WouldHaveTable(site, sets_caps=policy.sets_caps, since_s=time.time())
        self.commands: list[tuple[str, ...]] = []
        self.faults = 0
        self.snapshot = Snapshot()

    @property
    def site(self) -> Site:
        """What is ours."""
        return self._looking.site

    def begin(self) -> None:
        """Nothing has to be set up."""

    def step_back(self) -> None:
        """Nothing has to be undone."""

    def round(self) -> RoundReport:
        """Look and decide.

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
        found, fault = planned(live, self.site, self.policy, None)
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

    def _note(self, found: Planned, report: RoundReport) -> None:
        live, plan = found.live, found.plan
        self.commands = []
        for number in plan.preempts:
            job = live.jobs[number]
            report.preempts.append(job.key)
            self.commands.append(("scontrol", "requeue", job.key))
            self.log.add("would-preempt", job=job.key, user=job.user)
        for start in plan.starts:
            job = live.jobs[start.job]
            wanted = wanted_start(
                live, self.site, start, "start", before=None, sets_caps=self.policy.sets_caps
            )
            report.starts.append(job.key)
            fields = open_fields(wanted, job, self._gate_name, None)
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
            text = noted(job.admin_comment, {"cap_w": cap_w})
            self.commands.append(update_words(job.key, {"AdminComment": text}))
