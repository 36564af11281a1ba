"""Open runs of a node and their journals, from the prolog of a job to its epilog."""

from __future__ import annotations

import logging
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from wattloop.accounting.summary import account as accounted
from wattloop.core.clock import Clock
from wattloop.core.records import Domain, DomainKind, Gap, Provenance, Signal
from wattloop.core.results import Missing, RunStatus, WindowResult
from wattloop.core.settings import Settings
from wattloop.fleet.agent.config import AgentContext
from wattloop.fleet.agent.job_caps import JobSetup
from wattloop.fleet.agent.job_events import JobEvent
from wattloop.fleet.agent.job_facts import cpus_on_node, event_facts, gpu_names, parse_numbers
from wattloop.fleet.agent.job_shares import Account, NodeLayout, Occupant
from wattloop.fleet.agent.node_energy import NodeSensors
from wattloop.measure.job import Job
from wattloop.measure.meter_stream import MeterStream, domain_sources
from wattloop.measure.run_journal import RunJournal, feed_to_dict, new_run_id, without_secrets
from wattloop.measure.window_energy import window_energy
from wattloop.meters.base import Meter, Reading
from wattloop.store.journal import JournalWriter, SampleBlock, read_journal
from wattloop.version import __version__

_log = logging.getLogger("wattloop.agent")
UNALLOCATED = "unallocated"
BY_USE, SAME_PART = "by utilisation and what it costs", "the same part for each job"
BY_ACTIVITY = "by the activity of its MIG instances and what it costs"
PATIENCE_S = 6.0
"""Time for which a journal waits for the facts of its job from Slurm's controller, from the moment
at which this agent asks for them.
"""
ROWS = 2_000
"""Enough for totals, holes and edges; a week has 600,000."""
Row = tuple[float, Sequence[float]]


def downsample_rows(blocks: Sequence[SampleBlock]) -> list[Row]:
    """Select rows of a journal: first, last, around a restart, and every n-th."""
    rows: list[Row] = []
    for block in blocks:
        if block.feed == 0:
            width = block.width
            rows += [
                (time_s, block.values[i * width : (i + 1) * width])
                for i, time_s in enumerate(block.times_s)
            ]
    stride = max(1, len(rows) // ROWS)
    chosen: list[Row] = []
    for i, row in enumerate(rows):
        edge = i in (0, len(rows) - 1) or _anew(row, rows[i + 1]) or _anew(rows[i - 1], row)
        if edge or i % stride == 0:
            chosen.append(row)
    return chosen


def _anew(earlier: Row, later: Row) -> bool:
    return any(
        b < a or math.isnan(b) != math.isnan(a) for a, b in zip(earlier[1], later[1], strict=False)
    )


EXACT_S = 1e-6
"""Rows of a share are computed for an instant: they have no age, unlike a sensor's readings."""


def share_domain(
    layout: NodeLayout,
    domain: Domain,
    *,
    cpus: float,
    whole: bool,
    limit_w: float | None,
    part: float = 1.0,
    rule: str = "",
) -> Domain:
    """Return a domain of the node as a job has it.

    `limit_w` is the power limit in force, of a GPU that has one; `part` that of its MIG slices;
    `rule` divides a GPU that other jobs have, too.
    """
    if rule:
        provenance = Provenance.weakest((Provenance.MODELLED, domain.provenance))
        source = f"{domain.source}; the job's share: {rule}"
        return _share(domain, source, provenance=provenance, tdp_w=None, tdp_note="")
    if part < 1:
        provenance = Provenance.weakest((Provenance.MODELLED, domain.provenance))
        source = f"{domain.source}; the job's share: {part:.0%}, by slices of MIG"
        return _share(domain, source, provenance=provenance, tdp_w=None, tdp_note="")
    if not layout.is_shared(domain.name) or whole:
        return _share(domain, f"{domain.source}, all of it the job's", **_limits(domain, limit_w))
    tdp_w = None if domain.tdp_w is None else domain.tdp_w * cpus / max(cpus, layout.cpus)
    return _share(
        domain,
        f"{domain.source}; the job's share: power above idle by CPU time, idle power by "
        f"{cpus:g} of {layout.cpus} CPUs",
        provenance=Provenance.weakest((Provenance.MODELLED, domain.provenance)),
        tdp_w=tdp_w or None,
        tdp_note="" if tdp_w is None else f"TDP, for {cpus:g} of {layout.cpus} CPUs",
    )


def unattributed_domain(layout: NodeLayout, domain: Domain) -> Domain:
    """Return a domain of the node for energy that no job used."""
    provenance = domain.provenance
    if layout.is_shared(domain.name) or layout.is_node(domain.name):
        provenance = Provenance.weakest((Provenance.MODELLED, provenance))
    source = f"{domain.source}; what no job used"
    return _share(domain, source, provenance=provenance, tdp_w=None, tdp_note="")


def _limits(domain: Domain, limit_w: float | None) -> dict[str, object]:
    """Return the present limit, which may be a cap set for this job."""
    if limit_w is None or domain.tdp_w is None or abs(limit_w - domain.tdp_w) < 0.5:
        return {}
    default_w = max(limit_w, domain.tdp_w)
    note = f"enforced power limit {limit_w:g} W of {default_w:g} W default"
    return {"tdp_w": limit_w, "tdp_note": note if limit_w < default_w else ""}


def _share(domain: Domain, source: str, **changes: object) -> Domain:
    kept = domain._replace(
        kind=DomainKind.COUNTER,
        source=source,
        update_period_s=EXACT_S,
        averaging_s=0.0,
        wrap_j=None,
        read_cost_s=0.0,
        resolution=domain.resolution if domain.kind is DomainKind.COUNTER else 0.0,
    )
    return kept._replace(**changes)  # type: ignore[arg-type]  # names and types are Domain's own


class ShareMeter(Meter):
    """A meter whose readings the agent computes and passes to its feed."""

    name: ClassVar[str] = "agent"

    def __init__(self, domains: Sequence[Domain], signals: Mapping[str, str]) -> None:
        self._domains = tuple(domains)
        self._signals = tuple(Signal(name, unit) for name, unit in signals.items())

    def read(self) -> Sequence[Reading]:
        return [Gap("computed by the agent")] * len(self._domains)


NOTES_LIMIT = 20


@dataclass(slots=True)
class RunPlan:
    """Identity of a run; a restarted agent resumes from it.

    Attributes:
        event: name of the event that began it; empty for what no job used.
        whole: it has the node to itself.
        asked: Slurm's controller was asked, with or without success.
        died: its end was never reported.
        free_s: seconds of the node that no job had, for what no job used.
        gpu_parts: GPU -> the part of it that its slices of MIG are.
        gpu_instances: UUIDs of the MIG instances that it has, in lower case.
        gpus_shared: GPU that other jobs had at the same time -> the rule by which it is divided.
        modelled: domains whose energy is partly modelled, and why.
    """

    run_id: str
    event: str = ""
    job: str = ""
    uid: int = -1
    user: str = ""
    gpus: tuple[str, ...] = ()
    cpus: float = 0
    whole: bool = False
    started_s: float = 0.0
    started_wall_s: float = 0.0
    facts: dict[str, str] = field(default_factory=dict)
    ended_s: float | None = None
    exit_code: int | None = None
    notes: list[str] = field(default_factory=list)
    asked: bool = False
    died: bool = False
    free_s: float = 0.0
    modelled: dict[str, str] = field(default_factory=dict)
    gpu_parts: dict[str, float] = field(default_factory=dict)
    gpu_instances: list[str] = field(default_factory=list)
    gpus_shared: dict[str, str] = field(default_factory=dict)

    def occupant(
        self, cpu_s: float | None, use: Mapping[tuple[str, str], float] | None = None
    ) -> Occupant:
        """Return the job as attribution needs it; `use` is of (run, GPU)."""
        gpus = frozenset(self.gpus)
        used = {gpu: part for (run, gpu), part in (use or {}).items() if run == self.run_id}
        return Occupant(self.run_id, gpus, self.cpus, self.whole, cpu_s, self.gpu_parts, used)

    @property
    def status(self) -> RunStatus:
        """Return the status of an ended job by its exit code as Slurm gives it (that of wait)."""
        if self.died:
            return RunStatus.DIED
        if self.exit_code is None or self.exit_code == 0:
            return RunStatus.FINISHED
        return RunStatus.KILLED if self.exit_code & 0x7F else RunStatus.FAILED

    def note(self, text: str) -> None:
        if text not in self.notes and len(self.notes) < NOTES_LIMIT:
            self.notes.append(text)


class OpenRun:
    """A run that is being written.

    Args:
        missing: parts of the node that would be its own but cannot be read.
    """

    def __init__(
        self,
        plan: RunPlan,
        domains: Sequence[Domain],
        signals: Mapping[str, str],
        missing: Sequence[Missing],
        clock: Clock,
    ) -> None:
        self.plan = plan
        self.opened_s = clock.now_s()
        self.missing = list(missing)
        self.feed = MeterStream(ShareMeter(domains, signals), clock, 0)
        self._journal = RunJournal(synced=True)
        self._zero_j = {domain.name: 0.0 for domain in domains}
        self._shown_j: dict[str, float] = {}
        self._last_row_s = -math.inf
        self.path: Path | None = None

    def is_known(self, now_s: float) -> bool:
        """Return True when the scheduler was asked for the job's facts, or does not answer."""
        return self.plan.asked or now_s - self.opened_s > PATIENCE_S

    def describe(self, domains: Sequence[Domain]) -> None:
        """Update the domains: a cap may have been set since the run began."""
        self.feed.meter = ShareMeter(domains, {s.name: s.unit for s in self.feed.signals})
        self.feed.domains = self.feed.meter.domains

    def begin(self, path: Path, header: dict[str, Any], now_s: float) -> None:
        """Create the journal."""
        self._journal.begin(path, header, now_s)
        self.path = path

    def resume(self, path: Path, offsets_j: Mapping[str, float]) -> bool:
        """Resume the journal of an earlier process; False when it is missing or unreadable."""
        writer = JournalWriter.reopened(path)
        journal = None if writer is None else read_journal(path)
        if writer is None or journal is None:
            return False
        self._journal.take_over(writer)
        self.path = path
        self._zero_j.update({n: j for n, j in offsets_j.items() if n in self._zero_j})
        for time_s, values in downsample_rows(journal.blocks):
            if len(values) != len(self.feed.domains):
                return True  # of another layout: its rows are in the file all the same
            self.feed.take(time_s, [Gap("not read") if math.isnan(v) else v for v in values])
            self._last_row_s = time_s
            for domain, value in zip(self.feed.domains, values, strict=True):
                if not math.isnan(value):
                    self._shown_j[domain.name] = value
        self.feed.drained()
        return True

    @property
    def offsets_j(self) -> dict[str, float]:
        """Return the energy at which each counter was last restarted."""
        return dict(self._zero_j)

    def first_row(self, account: Account) -> None:
        """Write the first row: nothing, or what an earlier part of the run left."""
        self._take(self.plan.started_s, account, {})

    def row(self, time_s: float, account: Account, gaps: Mapping[str, str]) -> None:
        """Write the energy of the run up to an instant; `gaps` are unknown domains."""
        if time_s > self._last_row_s:
            self._take(time_s, account, gaps)

    def restart_counter(self, name: str, energy_j: float) -> None:
        """Start a domain's counter from zero again after a gap of unknown energy."""
        if name in self._zero_j:
            self._zero_j[name] = energy_j
            self._shown_j.pop(name, None)

    def signals_row(self, time_s: float, values: Mapping[str, float]) -> None:
        if self.feed.signals:
            row = [values.get(signal.name, math.nan) for signal in self.feed.signals]
            with self.feed.lock:
                self.feed.arrive_signals(time_s, row)

    def has(self, name: str) -> bool:
        return name in self._zero_j

    def event(self, event: dict[str, Any]) -> None:
        self._journal.add_event(event)

    def flush(self, now_s: float) -> None:
        """Write everything to the journal; without one, it waits."""
        if self.path is not None:
            self._journal.write([self.feed], now_s, lambda _: True)
            self.feed.thin_before(now_s)

    def result(
        self, end_s: float, account: Account, uncertainty_j: Mapping[str, float]
    ) -> WindowResult:
        """Return the energy of the run by its account."""
        modelled = [Missing(n, why) for n, why in self.plan.modelled.items() if self.has(n)]
        found = window_energy(
            domain_sources([self.feed]),
            [*self.missing, *modelled],
            name=self.plan.facts.get("name") or self.plan.job or "unallocated",
            window_id=0,
            parent_id=None,
            begin_s=self.plan.started_s,
            end_s=end_s,
            warnings=self.plan.notes + self._journal.warnings(),
        )
        # A share that is zero is known to be zero, unlike a sensor that does not move.
        still = {e.name for e in found.domains if e.energy_j is None and e.name in account.energy_j}
        domains = tuple(
            e._replace(
                energy_j=self._corrected_j(e.name, 0.0 if e.name in still else e.energy_j, account),
                covered=1.0 if e.name in still else e.covered,
                uncertainty_j=e.uncertainty_j + uncertainty_j.get(e.name, 0.0),
            )
            for e in found.domains
        )
        missing = tuple(m for m in found.missing if m.name not in still)
        return found._replace(domains=domains, missing=missing)

    def _corrected_j(self, name: str, energy_j: float | None, account: Account) -> float | None:
        """Return the energy of the rows with what was corrected after the last of them."""
        if energy_j is None or name not in self.plan.gpus_shared or name not in self._shown_j:
            return energy_j
        return energy_j + account.energy_j.get(name, 0.0) - self._zero_j[name] - self._shown_j[name]

    def end(self, now_s: float, end: dict[str, Any]) -> str | None:
        """Write the end and release the journal; return the error, if any."""
        self.flush(now_s)
        return self._journal.end(end)

    def release(self, now_s: float) -> None:
        """Release the journal: the job continues, and the next agent resumes the journal."""
        self.flush(now_s)
        self._journal.release()

    def abandon(self) -> None:
        """Drop the journal as it is, in a process that must not write any more."""
        self._journal.abandon()

    def _take(self, time_s: float, account: Account, gaps: Mapping[str, str]) -> None:
        values: list[float | Gap] = []
        for domain in self.feed.domains:
            name = domain.name
            if name in gaps:
                values.append(Gap(gaps[name]))
                continue
            joules = account.energy_j.get(name, 0.0) - self._zero_j[name]
            # A node's rest may shrink when its parts are known better; a counter never does.
            joules = max(joules, self._shown_j.get(name, joules))
            self._shown_j[name] = joules
            values.append(joules)
        self.feed.take(time_s, values)
        self._last_row_s = time_s


class OpenRuns:
    """Open runs by identifier; `unattributed` is the run of energy that no job used."""

    def __init__(self, context: AgentContext, sensors: NodeSensors, layout: NodeLayout) -> None:
        self._context = context
        self._sensors = sensors
        self._layout = layout
        self.runs: dict[str, OpenRun] = {}
        self.unattributed: OpenRun | None = None

    def all(self) -> list[OpenRun]:
        return [*self.runs.values(), *([] if self.unattributed is None else [self.unattributed])]

    def running(self) -> list[RunPlan]:
        return [run.plan for run in self.runs.values() if run.plan.ended_s is None]

    def find(self, job: str) -> OpenRun | None:
        """Return the run of a job that has not ended."""
        return next((r for r in self.runs.values() if r.plan.job == job and r.plan.ended_s is None),
                    None)  # fmt: skip

    # -- beginning -------------------------------------------------------------------------

    def plan(self, event: JobEvent, time_s: float) -> RunPlan:
        """Return the plan of a run that begins at `time_s`, for a start event."""
        context, facts, wall_s = self._context, event.facts, self._wall_s(time_s)
        is_container = facts.get("scheduler") == "kubernetes"
        cpus: float | None
        if is_container:
            cpus = min(number(facts.get("cpus")), float(context.cpus))
        else:
            cpus = cpus_on_node(facts.get("cpus", ""), facts.get("nodelist", ""), context.node)
        plan = RunPlan(
            run_id=new_run_id(wall_s),
            event=event.name,
            job=event.job,
            uid=_uid(facts),
            user=facts.get("user", ""),
            cpus=cpus or 0,
            whole=not is_container and cpus is not None and cpus >= context.cpus,
            started_s=time_s,
            started_wall_s=wall_s,
            facts=event_facts(facts, cluster=context.config.cluster, node=context.node),
        )
        numbers, names, unknown = self._gpus(facts)
        plan.gpus = names
        for number_here, part in _parts(facts.get("gpu_parts", "")):
            plan.gpu_parts |= dict.fromkeys(self._gpus({"gpus": number_here})[1], part)
        plan.gpu_instances = [x.lower() for x in facts.get("gpu_instances", "").split(",") if x]
        strange = facts.get("gpus_unknown", "")
        if unknown or strange or (facts.get("gpus") and not numbers):
            which = ", ".join(map(str, unknown)) or strange or facts.get("gpus", "")
            plan.note(f"no sensor here belongs to its GPU {which}; its energy is not known")
        if said := facts.get("devices_unknown"):
            plan.note(f"which devices it has is not known: {said}")
        if cpus is None:
            plan.note("how many CPUs it has here is not known: its share is by CPU time alone")
        plan.facts["exclusive"] = "yes" if plan.whole else "no"
        plan.facts["cpus_on_node"] = f"{plan.cpus:g}"
        plan.facts["gpus_on_node"] = str(len(numbers))
        return plan

    def is_same_start(self, event: JobEvent, run: OpenRun) -> bool:
        """Return True when a start event belongs to an open run, not to a job that starts again.

        A requeued job has another restart count. A controller that lost its state gives numbers
        out again, to other users and on other cards.
        """
        plan, facts = run.plan, event.facts
        stated = (facts.get("restart", ""), _uid(facts), self._gpus(facts)[1])
        return stated == (plan.facts.get("restart", ""), plan.uid, plan.gpus)

    def open(self, plan: RunPlan) -> OpenRun:
        names = self._layout.of_job(frozenset(plan.gpus), plan.whole)
        units = self._sensors.signal_units()
        heads = tuple(f"{gpu}/" for gpu in plan.gpus)
        signals = {n: unit for n, unit in units.items() if plan.whole or n.startswith(heads)}
        # Missing cards of other jobs do not count.
        missing = [m for m in self._sensors.missing if plan.whole or not m.name.startswith("gpu:")]
        domains = [self._domain(plan, name) for name in names]
        run = self.runs[plan.run_id] = OpenRun(plan, domains, signals, missing, self._context.clock)
        return run

    def share_gpu(self, plan: RunPlan, gpu: str, *, by_use: bool) -> None:
        """Record that a run has a GPU together with others, or instances of it."""
        if gpu in plan.gpu_parts:
            how = "the activity of its MIG instances" if by_use else "its slices of MIG"
            plan.note(f"it has a part of {gpu}, by {how}")
            rule = BY_ACTIVITY if by_use else plan.gpus_shared.get(gpu, "")
        else:
            how = "divided by utilisation" if by_use else "each has the same part of it"
            plan.note(f"{gpu} is shared with other jobs; {how}")
            rule = BY_USE if by_use else SAME_PART
        if plan.gpus_shared.get(gpu, "") != rule:
            plan.gpus_shared[gpu] = rule
            run = self.runs[plan.run_id]
            run.describe([self._domain(plan, domain.name) for domain in run.feed.domains])

    def open_unattributed(self, time_s: float, plan: RunPlan | None = None) -> OpenRun:
        """Open a run for energy that no job uses."""
        if plan is None:
            wall_s = self._wall_s(time_s)
            plan = RunPlan(new_run_id(wall_s), started_s=time_s, started_wall_s=wall_s, asked=True)
        domains = [unattributed_domain(self._layout, d) for d in self._layout.domains.values()]
        missing, clock = self._sensors.missing, self._context.clock
        self.unattributed = OpenRun(plan, domains, {}, missing, clock)
        return self.unattributed

    def apply_setup(self, setup: JobSetup) -> None:
        """Apply the controller's answer about a job, and the cap that it got."""
        run = self.runs.get(setup.run_id)
        if run is None:
            return
        plan = run.plan
        plan.asked = True
        if setup.facts is not None:
            plan.facts.update(setup.facts.facts)
            plan.user = plan.user or setup.facts.facts.get("user", "")
            if setup.facts.tampered:
                _log.warning(
                    "job %s of %s: its own words imitate AdminComment", plan.job, plan.user
                )
        elif setup.reason:
            plan.note(f"the scheduler said nothing of it: {setup.reason}")
        for gpu, watts in setup.cap_w.items():
            plan.facts[f"cap_w {gpu}"] = f"{watts:g}"
            text = f"{gpu}: power cap of {watts:g} W, {setup.cap_why}"
            run.event({"type": "note", "time_s": self._context.clock.now_s(), "text": text})

    def write_headers(self, now_s: float) -> list[str]:
        """Begin the journals of runs whose facts are known; return errors, if any."""
        faults = []
        for run in self.all():
            plan = run.plan
            if run.path is not None or not run.is_known(now_s):
                continue
            if plan.job:
                run.describe([self._domain(plan, d.name) for d in run.feed.domains])
            path = self._context.journals / f"{plan.run_id}.journal"
            try:
                run.begin(path, self._header(run), now_s)
            except OSError as error:
                faults.append(f"{path}: {error.strerror or error}")
        return faults

    # -- ending ----------------------------------------------------------------------------

    def end_record(
        self,
        run: OpenRun,
        end_s: float,
        account: Account,
        status: RunStatus,
        saving: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        plan = run.plan
        result = run.result(end_s, account, self._uncertainty_j(run, end_s, account))
        settings = self._settings(plan, end_s)
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
            "saving": saving,
        }

    # -- inside ----------------------------------------------------------------------------

    def _header(self, run: OpenRun) -> dict[str, Any]:
        plan, context = run.plan, self._context
        settings = self._settings(plan)
        cluster = plan.facts.get("cluster") or context.config.cluster
        tags = {"node": context.node, "cluster": cluster, UNALLOCATED: "" if plan.job else "yes"}
        kind = plan.facts.get("scheduler", "slurm")
        number = plan.facts.get("job") or plan.job  # of a container: its owner's
        job = Job(number, kind, scheduler=plan.facts).to_dict() if plan.job else None
        return {
            "run_id": plan.run_id,
            "name": plan.facts.get("name") or (f"job {plan.job}" if plan.job else UNALLOCATED),
            "command": None,
            "kind": kind if plan.job else UNALLOCATED,
            "started_wall_s": plan.started_wall_s,
            "started_s": plan.started_s,
            "boot_id": context.host.boot_id,
            "host": context.node,
            "machine_id": context.host.machine_id,
            "pid": os.getpid(),
            "user": plan.user,
            "cwd": "",
            "python": f"{sys.version.split()[0]} ({sys.implementation.name})",
            "version": __version__,
            "settings": without_secrets({**settings._asdict(), "sources": dict(settings.sources)}),
            "tags": {name: value for name, value in tags.items() if value},
            "job": job,
            "parent_run_id": None,
            "feeds": [feed_to_dict(run.feed)],
            "missing": [missing._asdict() for missing in run.missing],
        }

    def _settings(self, plan: RunPlan, end_s: float | None = None) -> Settings:
        """Return settings with the run's share of board, disks and network card: by its CPUs."""
        share = 1.0
        if not plan.job:
            length_s = 0.0 if end_s is None else end_s - plan.started_s
            share = min(1.0, plan.free_s / length_s) if length_s > 0 else 1.0
        elif not plan.whole:
            share = min(1.0, plan.cpus / self._context.cpus)
        return self._context.settings._replace(node_share=share)

    def _gpus(self, facts: Mapping[str, str]) -> tuple[list[int], tuple[str, ...], list[int]]:
        """Return a job's GPU numbers in Slurm, their domains, and the numbers without one."""
        numbers = parse_numbers(facts["gpus"]) if facts.get("gpus") else []
        known = list(self._sensors.sources)
        names, unknown = gpu_names(numbers, known, self._context.gpu_numbers)
        return numbers, tuple(names), unknown

    def _domain(self, plan: RunPlan, name: str) -> Domain:
        limit_w = self._sensors.signals().get(f"{name}/power_limit")
        return share_domain(
            self._layout,
            self._layout.domains[name],
            cpus=plan.cpus,
            whole=plan.whole,
            limit_w=limit_w if limit_w and limit_w > 0 else None,
            part=plan.gpu_parts.get(name, 1.0),
            rule=plan.gpus_shared.get(name, ""),
        )

    def _uncertainty_j(self, run: OpenRun, end_s: float, account: Account) -> dict[str, float]:
        """Return half-widths by domain: of the sensor, and of the rule of attribution."""
        plan = run.plan
        found = {}
        for name in (domain.name for domain in run.feed.domains):
            sensor_j = 2 * self._sensors.sigma_j(name, plan.started_s, end_s)
            shared = self._layout.is_shared(name) and not plan.whole
            share = plan.cpus / self._context.cpus if shared and plan.job else 1.0
            energy_j = abs(account.energy_j.get(name, 0.0))
            edges_s = (plan.started_s, end_s) if plan.job else ()
            sensor_j += sum(self._sensors.unseen_j(name, edge_s) for edge_s in edges_s)
            found[name] = min(sensor_j * share, energy_j)
            if shared or name in plan.gpus:
                found[name] += account.doubt_j(name)
        return found

    def _wall_s(self, time_s: float) -> float:
        clock = self._context.clock
        return clock.wall_s() - (clock.now_s() - time_s)


def number(text: str | None) -> float:
    """Return a number of an event; 0 for others."""
    return float(text) if text and re.fullmatch(r"\d{1,12}(\.\d{1,9})?", text) else 0.0


def _parts(text: str) -> Iterator[tuple[str, float]]:
    """Return number and part of GPUs from `0=0.429,3=0.143`; what is not one is left out."""
    for word in text.split(","):
        found = re.fullmatch(r"(\d{1,3})=(0?\.\d{1,6}|1(?:\.0*)?)", word)
        if found is not None:
            yield found[1], float(found[2])


def _uid(facts: Mapping[str, str]) -> int:
    return int(facts["uid"]) if facts.get("uid", "").isdecimal() else -1
