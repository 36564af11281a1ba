"""Attribution of a node's energy to its jobs over time, which a restarted agent resumes."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from wattloop.accounting.idle import idle_path, load_idle
from wattloop.core.errors import WattloopError
from wattloop.core.records import Domain, Scope
from wattloop.core.results import WindowResult
from wattloop.core.settings import Settings
from wattloop.fleet.agent.attribution import (
    UNATTRIBUTED,
    Account,
    EnergyLedger,
    NodeLayout,
    SharedInterval,
)
from wattloop.fleet.agent.config import AgentContext
from wattloop.fleet.agent.cpu_time import CpuTimes, JobKey
from wattloop.fleet.agent.job_events import EventQueue, JobEvent
from wattloop.fleet.agent.node_energy import NodeSensors
from wattloop.fleet.agent.open_runs import OpenRun, OpenRuns, RunPlan
from wattloop.hardware.host import Host
from wattloop.measure.energy_curve import BRIDGE_S
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.measure.run_journal import new_run_id
from wattloop.meters.base import Context
from wattloop.store.journal import JournalWriter, read_journal

OVER_S = 10.0
"""The least mean power over so long: shorter ones are noise of the sensor."""


class LearnedIdlePower:
    """Idle power in watts by domain.

    Args:
        domains: those that are shared by CPU time.
        stated_w: of one CPU package, if the operator knows it.
        fitted_w: from this machine's idle lines (`wattloop idle`).
    """

    def __init__(
        self,
        domains: Mapping[str, Domain],
        stated_w: float | None = None,
        fitted_w: Mapping[str, float] | None = None,
    ) -> None:
        self.watts: dict[str, float] = {}
        self.sources: dict[str, str] = {}
        self._learned = []
        for name, domain in domains.items():
            if stated_w is not None and domain.scope is Scope.CPU and domain.inside is None:
                self.watts[name], self.sources[name] = stated_w, "as set by cpu_idle_w"
            elif fitted_w and name in fitted_w:
                self.watts[name], self.sources[name] = fitted_w[name], "fitted by 'wattloop idle'"
            else:
                self._learned.append(name)
                self.sources[name] = "the least seen over 10 s"
        self._begin_s = 0.0
        self._sum_j: dict[str, float] = {}
        self._least_w: dict[str, float] = {}

    def saw(self, totals_j: Mapping[str, float], now_s: float) -> None:
        """Learn from the energy of each domain since the beginning."""
        if not self._sum_j:
            self._begin_s, self._sum_j = now_s, dict(totals_j)
        length_s = now_s - self._begin_s
        if length_s < OVER_S:
            return
        for name in self._learned:
            gained_j = totals_j.get(name, 0.0) - self._sum_j.get(name, 0.0)
            if gained_j > 0 and length_s < 2 * OVER_S:
                least_w = min(self._least_w.get(name, float("inf")), gained_j / length_s)
                self._least_w[name] = self.watts[name] = least_w
        self._begin_s, self._sum_j = now_s, dict(totals_j)

    def to_state(self) -> dict[str, Any]:
        return dict(self._least_w)

    def take_up(self, state: Mapping[str, Any]) -> None:
        """Resume from what was learned before."""
        for name in self._learned:
            if isinstance(state.get(name), int | float):
                self._least_w[name] = self.watts[name] = float(state[name])


def fitted_idle_power(settings: Settings, host: Host) -> dict[str, float]:
    """Return the slopes of this machine's idle lines; {} without them."""
    try:
        record = load_idle(idle_path(settings.store_location, host.machine_id))
    except WattloopError:
        return {}
    return {} if record is None else {name: line.beta_w for name, line in record.lines.items()}


Apply = Callable[[JobEvent, float, float], None]
"""Told an event, when it takes effect, and when it says it happened."""
YOUNG_S = 5.0


class NodeAttribution:
    """Attribution of the node's energy, complete up to `until_s`."""

    def __init__(self, site: AgentContext) -> None:
        self.site = site
        self.sensors = NodeSensors(Context(site.host, site.settings, site.clock))
        self.layout = NodeLayout(self.sensors.domains, site.cpus)
        self.book = OpenRuns(site, self.sensors, self.layout)
        self.cpu = CpuTimes(site.host, Path(site.config.cgroup_root), site.node)
        shared = {n: d for n, d in self.layout.domains.items() if self.layout.is_shared(n)}
        fitted_w = fitted_idle_power(site.settings, site.host)
        self.idle = LearnedIdlePower(shared, site.config.cpu_idle_w, fitted_w)
        self.ledger = EnergyLedger(self.layout, {})
        self.until_s = 0.0
        self._total_j: dict[str, float] = {}

    def read(self) -> bool:
        """Read every sensor and every job's CPU time; return what `read_cpu` returns."""
        self.sensors.read()
        young = self.read_cpu()
        self.sensors.read_signals()
        return young

    def read_cpu(self) -> bool:
        """Read CPU times; True while a job is so young that it may end before the next reading."""
        now_s = self.site.clock.now_s()
        running = self.book.running()
        self.cpu.read([JobKey(p.run_id, p.job, p.uid) for p in running], now_s)
        return any(now_s - plan.started_s < YOUNG_S for plan in running)

    def share_out(self, until_s: float, arrivals: EventQueue, apply: Apply) -> None:
        """Attribute everything up to an instant, with jobs starting and ending on the way."""
        stretches = []
        begin_s = self.until_s
        for said_s, event in arrivals.due(until_s):
            time_s = max(said_s, begin_s)
            if time_s > begin_s:
                stretches.append(self._stretch(begin_s, time_s))
                begin_s = time_s
            apply(event, time_s, said_s)
        if until_s > begin_s:
            stretches.append(self._stretch(begin_s, until_s))
        self.until_s = until_s
        self.ledger.extend(stretches)
        before_s = dict(self.ledger.done_s)
        self.ledger.settle(self._take, self.sensors.readable, self.idle.watts)
        self._mark_holes(before_s)
        self.idle.saw(self._total_j, until_s)

    def account_of(self, run: OpenRun) -> Account:
        """Return the account of a run."""
        return self.ledger.accounts[run.plan.run_id if run.plan.job else UNATTRIBUTED]

    def gaps(self, names: list[str], until_s: float) -> dict[str, str]:
        """Return which of these domains are unknown up to an instant, and why."""
        return {
            name: self.sensors.reasons.get(name, "not read")
            for name in names
            if self.ledger.done_s.get(name, until_s) < until_s
        }

    def forget(self) -> None:
        self.cpu.forget_before(self.until_s - 1.0, self.book.runs)
        self.sensors.keep_memory_small(self.site.clock.now_s())

    def _take(self, name: str, until_s: float) -> float:
        joules = self.sensors.take(name, until_s)
        self._total_j[name] = self._total_j.get(name, 0.0) + joules
        return joules

    def _stretch(self, begin_s: float, end_s: float) -> SharedInterval:
        running = self.book.running()
        occupants = tuple(
            self.book.occupant(plan, self.cpu.between(plan.run_id, begin_s, end_s))
            for plan in running
        )
        if self.book.unattributed is not None:
            held = min(1.0, sum(plan.cpus for plan in running) / self.site.cpus)
            self.book.unattributed.plan.free_s += (1 - held) * (end_s - begin_s)
        return SharedInterval(begin_s, end_s, occupants, self.cpu.busy_between(begin_s, end_s))

    def _mark_holes(self, before_s: dict[str, float]) -> None:
        """Restart counters of runs after a gap of unknown energy; mark runs whose gap was
        modelled.
        """
        for name, done_s in self.ledger.done_s.items():
            begin_s = before_s.get(name, done_s)
            modelled = self.sensors.unseen_wraps(name, begin_s, done_s)
            if modelled is not None:
                for run in self.book.all():
                    run.plan.modelled.setdefault(name, modelled)
            if done_s - begin_s > BRIDGE_S and (
                self.sensors.hole_s(name, begin_s, done_s) > BRIDGE_S
            ):
                for run in self.book.all():
                    run.restart_counter(name, self.account_of(run).energy_j.get(name, 0.0))


# What a restarted agent needs: where counters stood, and which runs are open.
#
# The file is replaced at every step, before the journals get their rows: it is always as far as
# they are or ahead, so nothing is counted twice.
STATE_FILE, STATUS_FILE = "state.json", "status.json"
"""In the agent's folder: what a restart needs, and what it says of the node."""
VERSION = 1


@dataclass(slots=True)
class OpenRunState:
    """Saved state of an open run.

    Attributes:
        plan: who it is.
        account: its joules.
        offsets_j: the energy at which each counter was last restarted.
        cpu_s: its CPU time.
        journal: whether its journal was begun.
    """

    plan: RunPlan
    account: dict[str, Any] = field(default_factory=dict)
    offsets_j: dict[str, float] = field(default_factory=dict)
    cpu_s: float = 0.0
    journal: bool = False


@dataclass(slots=True)
class AgentState:
    """Saved state of an agent.

    Attributes:
        boot_id: times are of this boot.
        until_s: up to when the node's time is shared out.
        wall_s: the time of day then.
        sensors: where counters stood.
        idle: what was learned of idle power.
        runs: open ones, what no job used among them.
        handled: events that are dealt with, though their files may still be there.
    """

    boot_id: str
    until_s: float
    wall_s: float
    sensors: dict[str, Any] = field(default_factory=dict)
    idle: dict[str, Any] = field(default_factory=dict)
    runs: list[OpenRunState] = field(default_factory=list)
    handled: list[str] = field(default_factory=list)


def save_state(path: Path, state: AgentState) -> None:
    """Save the state atomically.

    Raises:
        OSError: it cannot be written; what was there before stays.
    """
    fresh = path.with_name(f".{path.name}.new")
    data = json.dumps({"version": VERSION, **asdict(state)}, separators=(",", ":")).encode()
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        if os.write(descriptor, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(descriptor)
    fresh.replace(path)


def load_state(path: Path) -> tuple[AgentState | None, str]:
    """Load the state of the last agent, or return why it cannot be used."""
    try:
        data = json.loads(path.read_text("utf-8"))
        if data.pop("version") != VERSION:
            return None, f"{path}: of another version"
        runs = [
            OpenRunState(**{**run, "plan": RunPlan(**_known(run["plan"]))})
            for run in data.pop("runs")
        ]
        for run in runs:
            run.plan.gpus = tuple(run.plan.gpus)
        return AgentState(runs=runs, **data), ""
    except FileNotFoundError:
        return None, ""
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        return None, f"{path}: cannot be used ({error})"


def _known(plan: dict[str, Any]) -> dict[str, Any]:
    names = {one.name for one in fields(RunPlan)}
    return {name: value for name, value in plan.items() if name in names}


LONG_S = 600.0
"""After so long without news a server may have closed a run by itself: then a new one goes on."""
NOTICED_S = 2.0
_log = logging.getLogger("wattloop.agent")


def resume(sharing: NodeAttribution, state: AgentState | None) -> None:
    """Restore the attribution of a node to the state of the last agent."""
    site, sensors, book = sharing.site, sharing.sensors, sharing.book
    now_s = site.clock.now_s()
    same_boot = state is not None and state.boot_id == site.host.boot_id and state.until_s <= now_s
    if state is None or not same_boot:
        sensors.start(now_s)
        sharing.ledger = EnergyLedger(sharing.layout, sensors.handed_out_s())
        _end_strays(
            site.journals, "the node was restarted" if state else "its agent's state is lost"
        )
        if state is not None:
            sharing.idle.take_up(state.idle)
        unattributed = book.open_unattributed(now_s)
        unattributed.first_row(sharing.account_of(unattributed))
        sharing.until_s = now_s
        return
    taken = set(sensors.take_up(state.sensors))
    sensors.start(now_s)
    sharing.ledger = EnergyLedger(sharing.layout, sensors.handed_out_s())
    sharing.idle.take_up(state.idle)
    gap_s = now_s - state.until_s
    for kept in state.runs:
        run = _taken_up(sharing, kept, gap_s, state.until_s)
        if run is None:
            continue
        for name in set(sharing.layout.domains) - taken:
            run.restart_counter(name, sharing.account_of(run).energy_j.get(name, 0.0))
        if gap_s > NOTICED_S:
            run.plan.note(
                f"no agent ran for {gap_s:.0f} s of it; energy of that time is known from counters "
                "alone, and taken to be even"
            )
    open_ids = {run.plan.run_id for run in book.all()}
    _end_strays(site.journals, "its agent's state is lost", besides=open_ids)
    if book.unattributed is None:
        unattributed = book.open_unattributed(state.until_s)
        unattributed.first_row(sharing.account_of(unattributed))
    _log.info("went on with %d jobs after %.1f s", len(book.runs), gap_s)
    sharing.until_s = state.until_s


def agent_state(sharing: NodeAttribution, handled: list[str]) -> AgentState:
    """Return the state that the next agent resumes from."""
    runs = [
        OpenRunState(
            plan=run.plan,
            account=sharing.account_of(run).to_state(),
            offsets_j=run.offsets_j,
            cpu_s=sharing.cpu.last(run.plan.run_id),
            journal=run.path is not None,
        )
        for run in sharing.book.all()
    ]
    return AgentState(
        boot_id=sharing.site.host.boot_id,
        until_s=sharing.until_s,
        wall_s=sharing.site.clock.wall_s(),
        sensors=sharing.sensors.to_state(sharing.until_s),
        idle=sharing.idle.to_state(),
        runs=runs,
        handled=handled,
    )


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


def _taken_up(
    sharing: NodeAttribution, kept: OpenRunState, gap_s: float, until_s: float
) -> OpenRun | None:
    """Resume an open run; None for one that ended just before the state was saved."""
    plan, book = kept.plan, sharing.book
    path = sharing.site.journals / f"{plan.run_id}.journal"
    complete = kept.journal and _is_complete(path)
    if complete and (plan.ended_s is not None or not plan.job):
        return None
    account = Account.from_state(kept.account)
    too_long = gap_s > LONG_S and sharing.site.config.deliver is not None
    second = kept.journal and (too_long or complete)
    if second:
        # Its first part is closed, here or by the process that imported it; this is the second.
        end_as_crashed(path, "no agent ran for a long time; the job goes on in another run")
        plan.note(f"goes on from run {plan.run_id}")
        plan.run_id = new_run_id(plan.started_wall_s + (until_s - plan.started_s))
        plan.started_wall_s += until_s - plan.started_s
        plan.started_s = until_s
        path = sharing.site.journals / f"{plan.run_id}.journal"
    run = book.open(plan) if plan.job else book.open_unattributed(plan.started_s, plan)
    sharing.ledger.open(plan.run_id if plan.job else UNATTRIBUTED, account)
    if plan.job:
        sharing.cpu.begin(plan.run_id, until_s, kept.cpu_s)
    if not run.go_on(path, kept.offsets_j) or not kept.journal:
        # A journal that was begun just before the state was to say so has no row yet.
        run.first_row(account if second else Account())
    return run


def _is_complete(path: Path) -> bool:
    """Return True when a journal has its end, or is gone because it is stored."""
    try:
        journal = read_journal(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return journal is not None and journal.end is not None


def _end_strays(folder: Path, why: str, besides: set[str] | None = None) -> None:
    """Close journals without an end that no open run has."""
    for path in sorted(folder.glob("*.journal")):
        if path.stem not in (besides or ()) and end_as_crashed(path, why):
            _log.warning("%s: %s; closed as died", path.name, why)
