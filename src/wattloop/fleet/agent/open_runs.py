"""Open runs of a node, from the prolog of a job to its epilog."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from wattloop.accounting.summary import account as accounted
from wattloop.core.records import Domain
from wattloop.core.results import Missing, RunStatus
from wattloop.core.settings import Settings
from wattloop.fleet.agent.agent_context import AgentContext
from wattloop.fleet.agent.attribution import Account, NodeLayout, Occupant
from wattloop.fleet.agent.event_queue import JobEvent
from wattloop.fleet.agent.job_facts import cpus_on_node, facts_of_event, gpu_names, parse_numbers
from wattloop.fleet.agent.job_run import JobRun, RunPlan, share_domain, unattributed_domain
from wattloop.fleet.agent.node_energy import NodeSensors
from wattloop.fleet.agent.slow_calls import SlowAnswer
from wattloop.hardware.host import Host
from wattloop.measure.job import Job
from wattloop.measure.run_journal import feed_to_dict, new_run_id, without_secrets
from wattloop.version import __version__

UNALLOCATED = "unallocated"


def run_header(
    run: JobRun, *, settings: Settings, host: Host, node: str, cluster: str
) -> dict[str, Any]:
    """Return plain data for the first frame of a run's journal."""
    plan = run.plan
    return {
        "run_id": plan.run_id,
        "name": plan.facts.get("name") or (f"job {plan.job}" if plan.job else UNALLOCATED),
        "command": None,
        "kind": "slurm" if plan.job else UNALLOCATED,
        "started_wall_s": plan.started_wall_s,
        "started_s": plan.started_s,
        "boot_id": host.boot_id,
        "host": node,
        "machine_id": host.machine_id,
        "pid": os.getpid(),
        "user": plan.user,
        "cwd": "",
        "python": f"{sys.version.split()[0]} ({sys.implementation.name})",
        "version": __version__,
        "settings": without_secrets({**settings._asdict(), "sources": dict(settings.sources)}),
        "tags": _tags(plan, node, cluster),
        "job": _job(plan).to_dict() if plan.job else None,
        "parent_run_id": None,
        "feeds": [feed_to_dict(run.feed)],
        "missing": [missing._asdict() for missing in run.missing],
    }


def run_settings(settings: Settings, share: float) -> Settings:
    """Return settings for this run's share of the node's other devices."""
    return settings._replace(node_share=share)


def _job(plan: RunPlan) -> Job:
    return Job(plan.job, "slurm", scheduler=plan.facts)


def _tags(plan: RunPlan, node: str, cluster: str) -> dict[str, str]:
    tags = {"node": node, "cluster": plan.facts.get("cluster") or cluster}
    if not plan.job:
        tags["unallocated"] = "yes"
    return {name: value for name, value in tags.items() if value}


def job_plan(
    event: JobEvent, site: AgentContext, domains: Sequence[str], *, time_s: float, wall_s: float
) -> RunPlan:
    """Return the plan of a run for a start event.

    Args:
        event: what the prolog left.
        site: this node.
        domains: names of what can be read here, cards among them.
        time_s: when it begins, on the monotonic clock.
        wall_s: the same as a time of day.
    """
    facts = event.facts
    cpus = cpus_on_node(facts.get("cpus", ""), facts.get("nodelist", ""), site.node)
    plan = RunPlan(
        run_id=new_run_id(wall_s),
        event=event.name,
        job=event.job,
        uid=_uid(facts),
        user=facts.get("user", ""),
        cpus=cpus or 0,
        whole=cpus is not None and cpus >= site.cpus,
        started_s=time_s,
        started_wall_s=wall_s,
        facts=facts_of_event(facts, cluster=site.config.cluster, node=site.node),
    )
    numbers = _gpu_numbers(facts)
    found, strange = gpu_names(numbers, domains, site.gpu_numbers)
    plan.gpus = tuple(found)
    if strange or (facts.get("gpus") and not numbers):
        which = ", ".join(map(str, strange)) or facts.get("gpus", "")
        plan.note(f"no sensor here belongs to GPU {which} of Slurm; its energy is not known")
    if cpus is None:
        plan.note("how many CPUs it has here is not known: its share is by CPU time alone")
    plan.facts["exclusive"] = "yes" if plan.whole else "no"
    plan.facts["cpus_on_node"] = str(plan.cpus)
    plan.facts["gpus_on_node"] = str(len(numbers))
    return plan


def tells_of(event: JobEvent, plan: RunPlan, site: AgentContext, domains: Sequence[str]) -> bool:
    """Return True when a start event belongs to a known run, not to a job that starts again.

    A requeued job has another restart count; a controller that lost its state gives numbers out
    again, to whomever and on whatever cards.
    """
    facts = event.facts
    gpus, _ = gpu_names(_gpu_numbers(facts), domains, site.gpu_numbers)
    said = (facts.get("restart", ""), _uid(facts), tuple(gpus))
    return said == (plan.facts.get("restart", ""), plan.uid, plan.gpus)


def _uid(facts: Mapping[str, str]) -> int:
    return int(facts["uid"]) if facts.get("uid", "").isdecimal() else -1


def _gpu_numbers(facts: Mapping[str, str]) -> list[int]:
    return parse_numbers(facts["gpus"]) if facts.get("gpus") else []


PATIENCE_S = 6.0


"""How long a journal waits for what Slurm's controller says of its job."""


_log = logging.getLogger("wattloop.agent")


class OpenRuns:
    """Open runs by identifier; `unattributed` is the run of energy that no job used."""

    def __init__(self, site: AgentContext, sensors: NodeSensors, layout: NodeLayout) -> None:
        self._site = site
        self._sensors = sensors
        self._layout = layout
        self.runs: dict[str, JobRun] = {}
        self.unattributed: JobRun | None = None

    def all(self) -> list[JobRun]:
        return [*self.runs.values(), *([] if self.unattributed is None else [self.unattributed])]

    def running(self) -> list[RunPlan]:
        """Return jobs that have not ended."""
        return [run.plan for run in self.runs.values() if run.plan.ended_s is None]

    def of_job(self, job: str) -> JobRun | None:
        """Return the run of a job that has not ended."""
        return next((r for r in self.runs.values() if r.plan.job == job and r.plan.ended_s is None),
                    None)  # fmt: skip

    def occupant(self, plan: RunPlan, cpu_s: float | None) -> Occupant:
        """Return a job as attribution needs it."""
        return Occupant(plan.run_id, frozenset(plan.gpus), plan.cpus, plan.whole, cpu_s)

    # -- beginning -------------------------------------------------------------------------

    def plan_of(self, event: JobEvent, time_s: float) -> RunPlan:
        """Return the plan of a run for a start event."""
        domains, wall_s = list(self._sensors.channels), self._wall_s(time_s)
        return job_plan(event, self._site, domains, time_s=time_s, wall_s=wall_s)

    def is_known(self, event: JobEvent, run: JobRun) -> bool:
        """Return True when a start event belongs to an open run."""
        return tells_of(event, run.plan, self._site, list(self._sensors.channels))

    def open(self, plan: RunPlan) -> JobRun:
        """Open a run for a job."""
        names = self._layout.of_job(frozenset(plan.gpus), plan.whole)
        run = JobRun(
            plan,
            [self._described(plan, name) for name in names],
            self._signals(plan),
            self._missing(plan),
            self._site.clock,
        )
        self.runs[plan.run_id] = run
        return run

    def open_unattributed(self, time_s: float, plan: RunPlan | None = None) -> JobRun:
        """Open a run for energy that no job uses."""
        if plan is None:
            wall_s = self._wall_s(time_s)
            plan = RunPlan(new_run_id(wall_s), started_s=time_s, started_wall_s=wall_s, asked=True)
        domains = [unattributed_domain(self._layout, d) for d in self._layout.domains.values()]
        self.unattributed = JobRun(plan, domains, {}, self._sensors.missing, self._site.clock)
        return self.unattributed

    def answered(self, answer: SlowAnswer) -> None:
        """Apply the controller's answer about a job, and the cap that it got."""
        run = self.runs.get(answer.run_id)
        if run is None:
            return
        plan = run.plan
        plan.asked = True
        if answer.facts is not None:
            plan.facts.update(answer.facts.facts)
            plan.user = plan.user or answer.facts.facts.get("user", "")
            if answer.facts.tampered:
                _log.warning(
                    "job %s of %s: its own words imitate AdminComment", plan.job, plan.user
                )
        elif answer.reason:
            plan.note(f"Slurm's controller said nothing of it: {answer.reason}")
        for gpu, watts in answer.cap_w.items():
            plan.facts[f"cap_w {gpu}"] = f"{watts:g}"
            run.event(
                {
                    "type": "note",
                    "time_s": self._site.clock.now_s(),
                    "text": f"{gpu}: power cap of {watts:g} W, {answer.cap_why}",
                }
            )

    def write_headers(self, now_s: float) -> list[str]:
        """Begin the journals of runs whose facts are known; return errors, if any."""
        faults = []
        for run in self.all():
            plan = run.plan
            waited = now_s - plan.started_s > PATIENCE_S
            if run.path is not None or not (plan.asked or waited):
                continue
            if plan.job:
                run.describe([self._described(plan, d.name) for d in run.feed.domains])
            path = self._site.journals / f"{plan.run_id}.journal"
            share = self.share_of_node(plan)
            header = run_header(
                run,
                settings=run_settings(self._site.settings, share),
                host=self._site.host,
                node=self._site.node,
                cluster=self._site.config.cluster,
            )
            try:
                run.begin(path, header, now_s)
            except OSError as error:
                faults.append(f"{path}: {error.strerror or error}")
        return faults

    # -- ending ----------------------------------------------------------------------------

    def end_of(
        self, run: JobRun, end_s: float, account: Account, status: RunStatus
    ) -> dict[str, Any]:
        """Return the last frame of a run's journal."""
        plan = run.plan
        result = run.result(end_s, account, self._doubts(run, end_s, account))
        share = self.share_of_node(plan, end_s)
        settings = run_settings(self._site.settings, share)
        exit_code = plan.exit_code
        return {
            "type": "end",
            "time_s": end_s,
            "wall_s": plan.started_wall_s + (end_s - plan.started_s),
            "status": status.value,
            "exit_code": None if exit_code is None or exit_code & 0x7F else exit_code >> 8,
            "signal": None if exit_code is None else exit_code & 0x7F or None,
            "result": result.to_dict(),
            "accounting": accounted(result, settings, started_wall_s=plan.started_wall_s).to_dict(),
            "counted": True,
            "counted_by": None,
        }

    def share_of_node(self, plan: RunPlan, end_s: float | None = None) -> float:
        """Return a run's share of board, disks and network card: by its CPUs."""
        if not plan.job:
            length_s = 0.0 if end_s is None else end_s - plan.started_s
            return min(1.0, plan.free_s / length_s) if length_s > 0 else 1.0
        return 1.0 if plan.whole else min(1.0, plan.cpus / self._site.cpus)

    def status_of(self, plan: RunPlan) -> RunStatus:
        """Return the status of a job by its exit code as Slurm gives it (that of wait)."""
        if plan.died:
            return RunStatus.DIED
        if plan.exit_code is None or plan.exit_code == 0:
            return RunStatus.FINISHED
        return RunStatus.KILLED if plan.exit_code & 0x7F else RunStatus.FAILED

    # -- inside ----------------------------------------------------------------------------

    def _described(self, plan: RunPlan, name: str) -> Domain:
        limit_w = self._sensors.signals().get(f"{name}/power_limit")
        return share_domain(
            self._layout,
            self._layout.domains[name],
            cpus=plan.cpus,
            whole=plan.whole,
            limit_w=limit_w if limit_w and limit_w > 0 else None,
        )

    def _signals(self, plan: RunPlan) -> Mapping[str, str]:
        units = self._sensors.signal_units()
        heads = tuple(f"{gpu}/" for gpu in plan.gpus)
        return {n: unit for n, unit in units.items() if plan.whole or n.startswith(heads)}

    def _missing(self, plan: RunPlan) -> list[Missing]:
        """Return missing domains that would be the job's own; cards of others do not count."""
        return [m for m in self._sensors.missing if plan.whole or not m.name.startswith("gpu:")]

    def _doubts(self, run: JobRun, end_s: float, account: Account) -> dict[str, float]:
        """Return half-widths by domain: of the sensor, and of the rule of attribution."""
        plan = run.plan
        doubts = {}
        for name in (domain.name for domain in run.feed.domains):
            sensor_j = 2 * self._sensors.sigma_j(name, plan.started_s, end_s)
            shared = self._layout.is_shared(name) and not plan.whole
            share = plan.cpus / self._site.cpus if shared and plan.job else 1.0
            energy_j = abs(account.energy_j.get(name, 0.0))
            edges_s = (plan.started_s, end_s) if plan.job else ()
            sensor_j += sum(self._sensors.unseen_j(name, edge_s) for edge_s in edges_s)
            doubts[name] = min(sensor_j * share, energy_j)
            if shared:
                doubts[name] += account.doubt_j(name)
        return doubts

    def _wall_s(self, time_s: float) -> float:
        clock = self._site.clock
        return clock.wall_s() - (clock.now_s() - time_s)
