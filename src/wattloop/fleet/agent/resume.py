"""Resume after a restart of the agent: saved state, open runs, counters."""

from __future__ import annotations

import errno
import json
import logging
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from wattloop.core.results import WindowResult
from wattloop.fleet.agent.attribution import UNATTRIBUTED, Account, EnergyLedger
from wattloop.fleet.agent.energy_sharing import EnergySharing
from wattloop.fleet.agent.job_run import JobRun, RunPlan
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.measure.run_journal import new_run_id
from wattloop.store.journal import JournalWriter, read_journal

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


def resumed(sharing: EnergySharing, state: AgentState | None) -> None:
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


def to_keep(sharing: EnergySharing, handled: list[str]) -> AgentState:
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


def end_as_died(path: Path, why: str) -> bool:
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
    sharing: EnergySharing, kept: OpenRunState, gap_s: float, until_s: float
) -> JobRun | None:
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
        end_as_died(path, "no agent ran for a long time; the job goes on in another run")
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
        if path.stem not in (besides or ()) and end_as_died(path, why):
            _log.warning("%s: %s; closed as died", path.name, why)
