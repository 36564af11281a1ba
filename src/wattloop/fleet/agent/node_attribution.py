"""Attribution of a node's energy to its jobs over time, which a restarted agent resumes."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from wattloop.accounting.idle import fitted_idle_power
from wattloop.core.files import atomic_write_json
from wattloop.core.records import Scope
from wattloop.core.results import WindowResult
from wattloop.fleet.agent.config import AgentContext
from wattloop.fleet.agent.cpu_time import CpuTimes, JobKey, is_group_of
from wattloop.fleet.agent.job_events import EventQueue, JobEvent
from wattloop.fleet.agent.job_facts import JobSource
from wattloop.fleet.agent.job_shares import (
    UNATTRIBUTED,
    Account,
    EnergyLedger,
    LearnedIdlePower,
    NodeLayout,
    SharedInterval,
)
from wattloop.fleet.agent.node_energy import NodeSensors
from wattloop.fleet.agent.open_runs import OpenRun, OpenRuns, RunPlan
from wattloop.measure.energy_curve import BRIDGE_S
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.measure.run_journal import new_run_id
from wattloop.meters.base import Context, DeviceProcess
from wattloop.store.journal import JournalWriter, read_journal

STATE_FILE, STATUS_FILE = "state.json", "status.json"
"""In the agent's folder: the state that a restart needs, and the node's status."""
VERSION = 1
YOUNG_S = 5.0
LONG_S = 600.0
"""After so long without data a server may have closed a run: then a new one continues it."""
NOTICED_S = 2.0
Apply = Callable[[JobEvent, float, float], None]
"""Called with an event, the time at which it takes effect, and the time that it states."""
_log = logging.getLogger("wattloop.agent")


@dataclass(slots=True)
class OpenRunState:
    """Saved state of an open run.

    Attributes:
        offsets_j: the energy at which each counter was last restarted.
        journal: its journal was begun.
    """

    plan: RunPlan
    account: dict[str, Any] = field(default_factory=dict)
    offsets_j: dict[str, float] = field(default_factory=dict)
    cpu_s: float = 0.0
    journal: bool = False


@dataclass(slots=True)
class AgentState:
    """Saved state of an agent: where counters stood, and which runs are open.

    The file is replaced at every step, before the journals get their rows: it is always as far as
    they are or ahead, so nothing is counted twice.

    Attributes:
        boot_id: times are of this boot.
        until_s: end of the attributed time.
        handled: handled events whose files may still exist.
        shared_gpus: GPUs that jobs share -> what they used and were given lately.
    """

    boot_id: str
    until_s: float
    wall_s: float
    sensors: dict[str, Any] = field(default_factory=dict)
    idle: dict[str, Any] = field(default_factory=dict)
    runs: list[OpenRunState] = field(default_factory=list)
    handled: list[str] = field(default_factory=list)
    shared_gpus: dict[str, Any] = field(default_factory=dict)


class NodeAttribution:
    """Attribution of the node's energy, complete up to `until_s`."""

    def __init__(self, context: AgentContext, source: JobSource) -> None:
        self.context = context
        self.sensors = NodeSensors(Context(context.host, context.settings, context.clock))
        self.layout = NodeLayout(self.sensors.domains, context.cpus)
        source.attach(self.layout.domains)
        self.open_runs = OpenRuns(context, self.sensors, self.layout)
        self.cpu = CpuTimes(context.host, source.cpu_file, context.node)
        divided = {
            name: domain
            for name, domain in self.layout.domains.items()
            if self.layout.is_shared(name) or domain.scope is Scope.GPU
        }
        fitted_w = fitted_idle_power(context.settings, context.host.machine_id)
        self.idle = LearnedIdlePower(divided, context.config.cpu_idle_w, fitted_w)
        self.ledger = EnergyLedger(self.layout, {})
        self.until_s = 0.0
        self._began_s = context.clock.now_s()
        self._total_j: dict[str, float] = {}
        self._use: dict[tuple[str, str], float] = {}
        self._listed: dict[str, set[str]] = {}
        """GPU -> runs whose processes were on it at the last reading."""

    def read(self) -> bool:
        """Read every sensor and every job's CPU time; return what `read_cpu` returns."""
        self.sensors.read()
        young = self.read_cpu()
        self.sensors.read_signals()
        self._read_use()
        return young

    @property
    def _divided(self) -> set[str]:
        """GPUs that several jobs have, or had until a while ago: use tells more on one alone."""
        return set(self.ledger.shared_gpus)

    def _shared_gpus(self) -> Counter[str]:
        """Return GPUs and how many have each; the rest of one that MIG splits counts, too."""
        plans = self.open_runs.running()
        split = {gpu for plan in plans for gpu in plan.gpu_parts}
        return Counter([*split, *(gpu for plan in plans for gpu in plan.gpus)])

    def _read_use(self) -> None:
        """Read which part of the time jobs on one GPU used it, as far as the driver says.

        A process belongs to the job that its control group names, or that has its MIG instance.
        """
        shared = {gpu for gpu, count in self._shared_gpus().items() if count > 1} | self._divided
        if not shared:
            self._use = {}
            return
        plans = self.open_runs.running()
        for gpu, listed in self.sensors.processes().items():
            here = [plan for plan in plans if gpu in plan.gpus]
            runs = [plan.run_id for plan in here]
            if gpu in shared and any(one.slices for one in listed):
                self._note_use(gpu, [*runs, UNATTRIBUTED], self._use_of_instances(here, listed))
            elif gpu in shared and not any(gpu in plan.gpu_parts for plan in here):
                self._note_use(gpu, runs, self._use_of_jobs(here, listed))
        running = {UNATTRIBUTED, *(plan.run_id for plan in plans)}
        self._use = {k: use for k, use in self._use.items() if k[0] in running and k[1] in shared}

    def _use_of_jobs(
        self, plans: Sequence[RunPlan], listed: Sequence[DeviceProcess]
    ) -> dict[str, float] | None:
        """Return the use of those with a process on a GPU; None where the driver does not say."""
        if any(one.sm is None for one in listed):
            return None
        used: dict[str, float] = {}
        for one in listed:
            group = self.context.host.read_text("proc", f"{one.pid}/cgroup") or ""
            for plan in plans:
                if is_group_of(plan.job, group):
                    used[plan.run_id] = used.get(plan.run_id, 0.0) + (one.sm or 0.0)
        return used

    @staticmethod
    def _use_of_instances(
        plans: Sequence[RunPlan], listed: Sequence[DeviceProcess]
    ) -> dict[str, float] | None:
        """Return the use of those with an instance of a GPU; None where the driver does not say."""
        here = {one.instance.lower() for one in listed}
        known = all(here.intersection(plan.gpu_instances) for plan in plans)
        if not known or any(one.sm is None for one in listed):
            return None
        used = dict.fromkeys([UNATTRIBUTED, *(plan.run_id for plan in plans)], 0.0)
        for one in listed:
            owners = [p.run_id for p in plans if one.instance.lower() in p.gpu_instances]
            for run in owners or [UNATTRIBUTED]:
                used[run] += (one.sm or 0.0) / max(1, len(owners))
        return used

    def _note_use(self, gpu: str, runs: Sequence[str], used: Mapping[str, float] | None) -> None:
        before = self._listed.get(gpu, set())
        self._listed[gpu] = set(used or ())
        for run in runs:
            key = (run, gpu)
            if used is None:
                self._use.pop(key, None)
            elif run in used or run not in before:
                self._use[key] = used.get(run, 0.0)
            # else its processes ended since the last reading: until then it used the GPU as before

    def read_cpu(self) -> bool:
        """Read CPU times; True while a job is so young that it may end before the next reading."""
        now_s = self.context.clock.now_s()
        running = self.open_runs.running()
        self.cpu.read([JobKey(p.run_id, p.job, p.uid) for p in running], now_s)
        return any(now_s - plan.started_s < YOUNG_S for plan in running)

    def attribute(self, until_s: float, events: EventQueue, apply: Apply) -> None:
        """Attribute everything up to an instant, with jobs starting and ending on the way."""
        intervals = []
        begin_s = self.until_s
        for stated_s, event in events.due(until_s):
            time_s = max(stated_s, begin_s)
            if time_s > begin_s:
                intervals.append(self._interval(begin_s, time_s))
                begin_s = time_s
            apply(event, time_s, stated_s)
        if until_s > begin_s:
            intervals.append(self._interval(begin_s, until_s))
        self.until_s = until_s
        self.ledger.extend(intervals)
        before_s = dict(self.ledger.done_s)
        self.ledger.attribute(self._take, self.sensors.readable, self.idle.watts)
        self._mark_holes(before_s)
        self.idle.learn(self._total_j, until_s)

    def account_of(self, run: OpenRun) -> Account:
        return self.ledger.accounts[run.plan.run_id if run.plan.job else UNATTRIBUTED]

    def gaps(self, names: list[str], until_s: float) -> dict[str, str]:
        """Return which of these domains are unknown up to an instant, and why."""
        return {
            name: self.sensors.reasons.get(name, "not read")
            for name in names
            if self.ledger.done_s.get(name, until_s) < until_s
        }

    def total_j(self, name: str) -> float:
        """Return the attributed joules of a domain since this agent started."""
        return self._total_j.get(name, 0.0)

    def sigma_j(self, name: str) -> float:
        """Return the sensor's uncertainty of them."""
        return self.sensors.sigma_j(name, self._began_s, self.until_s)

    def forget(self) -> None:
        """Drop readings that are no longer needed."""
        self.cpu.forget_before(self.until_s - 1.0, self.open_runs.runs)
        self.sensors.keep_memory_small(self.context.clock.now_s())

    def open_unattributed(self, time_s: float) -> None:
        """Begin a run of energy that no job uses."""
        run = self.open_runs.open_unattributed(time_s)
        run.first_row(self.account_of(run))

    def _take(self, name: str, until_s: float) -> float:
        joules = self.sensors.take(name, until_s)
        self._total_j[name] = self._total_j.get(name, 0.0) + joules
        return joules

    def _interval(self, begin_s: float, end_s: float) -> SharedInterval:
        running = self.open_runs.running()
        users = self._shared_gpus()
        for plan in running:
            for gpu in plan.gpus:
                if users[gpu] > 1:
                    by_use = (plan.run_id, gpu) in self._use
                    self.open_runs.share_gpu(plan, gpu, by_use=by_use)
        occupants = tuple(
            plan.occupant(self.cpu.between(plan.run_id, begin_s, end_s), self._use)
            for plan in running
        )
        if self.open_runs.unattributed is not None:
            held = min(1.0, sum(plan.cpus for plan in running) / self.context.cpus)
            self.open_runs.unattributed.plan.free_s += (1 - held) * (end_s - begin_s)
        others = {gpu: use for (run, gpu), use in self._use.items() if run == UNATTRIBUTED}
        busy_s = self.cpu.busy_between(begin_s, end_s)
        return SharedInterval(begin_s, end_s, occupants, busy_s, others)

    def _mark_holes(self, before_s: dict[str, float]) -> None:
        """Restart counters after a gap of unknown energy; mark runs whose gap was modelled."""
        for name, done_s in self.ledger.done_s.items():
            begin_s = before_s.get(name, done_s)
            modelled = self.sensors.unseen_wraps(name, begin_s, done_s)
            if modelled is not None:
                for run in self.open_runs.all():
                    run.plan.modelled.setdefault(name, modelled)
            if done_s - begin_s > BRIDGE_S and (
                self.sensors.hole_s(name, begin_s, done_s) > BRIDGE_S
            ):
                for run in self.open_runs.all():
                    run.restart_counter(name, self.account_of(run).energy_j.get(name, 0.0))

    # -- across restarts -------------------------------------------------------------------

    def to_state(self, handled: list[str]) -> AgentState:
        """Return the state that the next agent resumes from."""
        runs = [
            OpenRunState(
                plan=run.plan,
                account=self.account_of(run).to_state(),
                offsets_j=run.offsets_j,
                cpu_s=self.cpu.last(run.plan.run_id),
                journal=run.path is not None,
            )
            for run in self.open_runs.all()
        ]
        return AgentState(
            boot_id=self.context.host.boot_id,
            until_s=self.until_s,
            wall_s=self.context.clock.wall_s(),
            sensors=self.sensors.to_state(self.until_s),
            idle=self.idle.to_state(),
            runs=runs,
            handled=handled,
            shared_gpus={n: one.to_state() for n, one in self.ledger.shared_gpus.items()},
        )

    def resume(self, state: AgentState | None) -> None:
        """Continue from the state of the last agent."""
        now_s, journals = self.context.clock.now_s(), self.context.journals
        if state is not None:
            self.idle.resume(state.idle)
        if state is None or state.boot_id != self.context.host.boot_id or state.until_s > now_s:
            self._start_ledger(now_s)
            why = "the node was restarted" if state else "its agent's state is lost"
            _end_strays(journals, why, set())
            self.open_unattributed(now_s)
            self.until_s = now_s
            return
        resumed = set(self.sensors.resume(state.sensors))
        self._start_ledger(now_s, state.shared_gpus)
        gap_s = now_s - state.until_s
        for saved in state.runs:
            run = self._resume_run(saved, gap_s, state.until_s)
            if run is None:
                continue
            for name in set(self.layout.domains) - resumed:
                run.restart_counter(name, self.account_of(run).energy_j.get(name, 0.0))
            if gap_s > NOTICED_S:
                run.plan.note(
                    f"no agent ran for {gap_s:.0f} s of it; energy of that time is known from "
                    "counters alone, and taken to be even"
                )
        open_ids = {run.plan.run_id for run in self.open_runs.all()}
        _end_strays(journals, "its agent's state is lost", open_ids)
        if self.open_runs.unattributed is None:
            self.open_unattributed(state.until_s)
        _log.info("resumed %d jobs after %.1f s", len(self.open_runs.runs), gap_s)
        self.until_s = state.until_s

    def _start_ledger(self, now_s: float, shared_gpus: dict[str, Any] | None = None) -> None:
        self.sensors.start(now_s)
        begun_s = self.sensors.handed_out_s()
        self.ledger = EnergyLedger(self.layout, begun_s, shared_gpus, self.idle.watts)

    def _resume_run(self, saved: OpenRunState, gap_s: float, until_s: float) -> OpenRun | None:
        """Resume an open run; None for one that ended just before the state was saved."""
        plan = saved.plan
        path = self.context.journals / f"{plan.run_id}.journal"
        complete = saved.journal and _is_complete(path)
        if complete and (plan.ended_s is not None or not plan.job):
            return None
        account = Account.from_state(saved.account)
        too_long = gap_s > LONG_S and self.context.config.deliver is not None
        too_long = too_long and plan.ended_s is None
        second = saved.journal and (too_long or complete)
        if second:
            # Its first part is closed, here or by the process that imported it; this is the second.
            end_as_crashed(path, "no agent ran for a long time; the job goes on in another run")
            plan.note(f"goes on from run {plan.run_id}")
            plan.run_id = new_run_id(plan.started_wall_s + (until_s - plan.started_s))
            plan.started_wall_s += until_s - plan.started_s
            plan.started_s = until_s
            path = self.context.journals / f"{plan.run_id}.journal"
        run = (
            self.open_runs.open(plan)
            if plan.job
            else self.open_runs.open_unattributed(plan.started_s, plan)
        )
        self.ledger.open(plan.run_id if plan.job else UNATTRIBUTED, account)
        if plan.job:
            self.cpu.begin(plan.run_id, until_s, saved.cpu_s)
        if not run.resume(path, saved.offsets_j) or not saved.journal:
            # A journal that was begun just before the state was to say so has no row yet.
            run.first_row(account if second else Account())
        return run


def save_state(path: Path, state: AgentState) -> None:
    """Save the state atomically."""
    data = {"version": VERSION, **asdict(state)}
    atomic_write_json(path, data, mode=0o600, separators=(",", ":"))


def load_state(path: Path) -> tuple[AgentState | None, str]:
    """Load the state of the last agent, or return why it cannot be used."""
    known = {one.name for one in fields(RunPlan)}
    try:
        data = json.loads(path.read_text("utf-8"))
        if data.pop("version") != VERSION:
            return None, f"{path}: of another version"
        runs = []
        for run in data.pop("runs"):
            plan = RunPlan(**{name: value for name, value in run["plan"].items() if name in known})
            plan.gpus = tuple(plan.gpus)
            runs.append(OpenRunState(**{**run, "plan": plan}))
        return AgentState(runs=runs, **data), ""
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return None, f"{path}: cannot be used ({error})"


def end_as_crashed(path: Path, why: str) -> bool:
    """Close an abandoned journal with an end record made from its content."""
    writer = JournalWriter.reopened(path)
    if writer is None:
        return False
    journal = read_journal(path)
    if journal is not None:
        end = finalize_orphaned_run(journal)
        result = WindowResult.from_dict(end["result"])
        warnings = (*result.warnings, f"{why}: it ends with the last reading")
        writer.end({**end, "result": result._replace(warnings=warnings).to_dict()})
    writer.close()
    return True


def _is_complete(path: Path) -> bool:
    """Return True when a journal has its end, or is gone because it is stored."""
    try:
        journal = read_journal(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return journal is not None and journal.end is not None


def _end_strays(folder: Path, why: str, open_ids: set[str]) -> None:
    """Close journals without an end that no open run has."""
    for path in sorted(folder.glob("*.journal")):
        if path.stem not in open_ids and end_as_crashed(path, why):
            _log.warning("%s: %s; closed as died", path.name, why)
