"""Read-only observer: a policy's decisions compared with what Slurm did."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from wattloop.fleet.slurm_text import format_notes
from wattloop.schedule.slurm.client import update_command
from wattloop.schedule.slurm.driver import RoundRunner
from wattloop.schedule.slurm.event_log import RoundReport
from wattloop.schedule.slurm.executor import planned_release, release_fields
from wattloop.schedule.slurm.managed_cluster import ManagedCluster
from wattloop.schedule.slurm.planner import PlannedStart, RoundPlan
from wattloop.schedule.slurm.poller import Snapshot
from wattloop.schedule.slurm.view import SlurmView

MOST_KEPT = 5_000
GATE_NAME = "wattloop_gate"
"""Reservation name in the shown commands."""


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


class SlurmObserver(RoundRunner):
    """Observer that asks a policy each round and changes nothing in Slurm.

    Attributes:
        commands: commands that a driver would have run in the last round.
    """

    commands: Sequence[tuple[str, ...]] = ()

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

    def _execute(self, plan: RoundPlan, live: SlurmView, report: RoundReport) -> None:
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
