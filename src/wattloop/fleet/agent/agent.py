"""The agent's loop: read sensors, follow jobs, attribute energy, write journals, every second."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from wattloop.control.daemon.job_gpus import JobGpus
from wattloop.core.records import Gap
from wattloop.core.results import RunStatus
from wattloop.fleet.agent.config import AgentContext
from wattloop.fleet.agent.job_caps import JobSetupThread
from wattloop.fleet.agent.job_events import EventQueue, JobEvent
from wattloop.fleet.agent.node_attribution import (
    STATE_FILE,
    NodeAttribution,
    agent_state,
    load_state,
    resume,
    save_state,
)
from wattloop.fleet.agent.open_runs import OpenRun

LOOK_S = 0.05
"""How often the folder of events is looked at: a few microseconds each time."""
YOUNG_LOOK_S = 0.25
"""The CPU time of a job that has just begun is looked at more often: it may be over soon."""
HOLD_S = 5.0
"""How long the end of a run waits for a sensor that is silent."""
LATE_S = 1.0
FAULT_PAUSE_S = 1.0
_log = logging.getLogger("wattloop.agent")


class Agent:
    """The agent of one node. `start`, then `work` (or `look` repeatedly), then `stop`."""

    def __init__(self, site: AgentContext) -> None:
        self.site = site
        self.faults: list[str] = []
        """What an operator should know, the last ones."""
        self.arrivals = EventQueue(site, self.fault)
        self.sharing = NodeAttribution(site)
        self.book = self.sharing.book
        self.desk = JobSetupThread(site.config, site.folder)
        self.on_run_ended: Callable[[], None] | None = None
        self.on_step: Callable[[], None] | None = None
        self.sharing.sensors.on_gap = self._gap
        self._due_s = self._young_s = 0.0

    def start(self) -> None:
        """Resume from the state of an earlier agent, or begin."""
        self.site.journals.mkdir(parents=True, exist_ok=True)
        self.site.folder.chmod(0o700)
        self.arrivals.prepare()
        state, reason = load_state(self.site.folder / STATE_FILE)
        if reason:
            self.fault(reason)
        self.sharing.read()
        if state is not None:
            self.arrivals.remember(state.handled)
        resume(self.sharing, state)
        self.desk.start()
        for plan in self.book.running():
            self.desk.job_began(plan.run_id, plan.job, plan.uid, plan.gpus)
        self._tell_jobs()
        self.step()

    def work(self, stop: threading.Event) -> None:
        """Work until stopped; `start` before and `stop` after."""
        while not stop.is_set():
            try:
                self.look()
            except Exception as error:  # noqa: BLE001 - jobs are measured on whatever goes wrong
                self.fault(f"{type(error).__name__}: {error}")
                _log.exception("the agent goes on")
                stop.wait(FAULT_PAUSE_S)
            stop.wait(LOOK_S)

    def look(self) -> None:
        """Handle what is due: an event, a reading, a young job's CPU time."""
        now_s = self.site.clock.now_s()
        if self.arrivals.changed() or now_s >= self._due_s:
            self.step()
        elif now_s >= self._young_s:
            self._note_young(self.sharing.read_cpu())

    def step(self) -> None:
        """Read everything, and attribute the energy that is known up to a moment ago."""
        sharing, clock = self.sharing, self.site.clock
        begun_s = clock.now_s()
        self._note_young(sharing.read())
        self.arrivals.fetch()
        until_s = max(sharing.until_s, begun_s - sharing.sensors.lag_s)
        sharing.share_out(until_s, self.arrivals, self._apply)
        for answer in self.desk.answers():
            self.book.answered(answer)
        now_s = clock.now_s()
        for fault in self.book.write_headers(now_s):
            self.fault(fault)
        if self._save_state():
            self.arrivals.clean()
            self._write_rows(until_s, now_s)
            self._end_runs(now_s)
        sharing.forget()
        self._plan_next(begun_s)
        if self.on_step is not None:
            self.on_step()

    def stop(self) -> None:
        """Release everything; the next agent resumes running jobs."""
        self.step()
        self.desk.stop()
        for run in self.book.all():
            run.let_go(self.site.clock.now_s())
        self.sharing.sensors.close()

    def fault(self, text: str) -> None:
        """Log an error once, and keep it for the status."""
        if text not in self.faults:
            _log.warning("%s", text)
            self.faults = [*self.faults[-9:], text]

    def _gap(self, time_s: float, domain: str, gap: Gap) -> None:
        """Report a sensor that failed or gave an implausible value to the operator and its jobs."""
        self.fault(gap.reason if domain in gap.reason else f"{domain}: {gap.reason}")
        fact = {"type": "gap", "time_s": time_s, "domain": domain, **gap._asdict()}
        for run in self.book.all():
            if run.has(domain):
                run.event(fact)

    # -- jobs ------------------------------------------------------------------------------

    def _apply(self, event: JobEvent, time_s: float, said_s: float) -> None:
        """Begin or end a job at `time_s`; its event was stamped `said_s`. Never raises."""
        try:
            self._begin_or_end(event, time_s, said_s)
        except Exception as error:  # noqa: BLE001 - one odd event must not cost the other jobs
            self.fault(f"{event.name}: {type(error).__name__}: {error}")
            _log.exception("%s", event.name)

    def _begin_or_end(self, event: JobEvent, time_s: float, said_s: float) -> None:
        run = self.book.of_job(event.job)
        if event.kind == "end":
            if run is None:
                _log.warning("job %s ended, but its beginning was never seen", event.job)
                return
            if "lost" in event.facts:
                run.plan.died = True
                run.plan.note("its end was never heard of; Slurm does not have it here any more")
            code = event.facts.get("exit", "")
            run.plan.exit_code = int(code) if code.isdigit() else None
            self._ended(run, time_s)
            return
        if run is not None:
            if self.book.is_known(event, run):
                _log.warning("job %s begins a second time: ignored", event.job)
                return
            run.plan.note("its end was never heard of; it ends where the job began again")
            self._ended(run, time_s)
        plan = self.book.plan_of(event, time_s)
        if time_s - said_s > LATE_S:
            plan.note(f"began {time_s - said_s:.0f} s before it was measured")
        fresh = self.book.open(plan)
        fresh.first_row(self.sharing.ledger.open(plan.run_id))
        self.sharing.cpu.begin(plan.run_id, time_s)
        self._tell_jobs()  # before its prolog goes on: the job may ask for its GPUs at once
        self.desk.job_began(plan.run_id, plan.job, plan.uid, plan.gpus)

    def _ended(self, run: OpenRun, time_s: float) -> None:
        run.plan.ended_s = time_s
        self.desk.job_ended(run.plan.job)
        self._tell_jobs()

    def _tell_jobs(self) -> None:
        self.desk.jobs_are(
            [
                JobGpus(p.job, p.uid, tuple(int(gpu.partition(":")[2]) for gpu in p.gpus))
                for p in self.book.running()
                if p.uid >= 0
            ]
        )

    # -- writing down ----------------------------------------------------------------------

    def _save_state(self) -> bool:
        """Save the state before anything else is written: it is never behind the journals."""
        state = agent_state(self.sharing, self.arrivals.handled)
        try:
            save_state(self.site.folder / STATE_FILE, state)
        except OSError as error:
            self.fault(f"{self.site.folder / STATE_FILE}: {error.strerror or error}")
            return False
        return True

    def _write_rows(self, until_s: float, now_s: float) -> None:
        sharing = self.sharing
        values = sharing.sensors.signals()
        gaps = sharing.gaps(list(sharing.layout.domains), until_s)
        for run in self.book.all():
            if run.plan.ended_s is None:
                run.row(until_s, sharing.account_of(run), gaps)
                run.signals_row(now_s, values)
            run.flush(now_s)

    def _end_runs(self, now_s: float) -> None:
        """Close ended runs; begin a new unattributed run when the current one is long."""
        sharing, before = self.sharing, len(self.book.runs)
        for run in list(self.book.runs.values()):
            end_s = run.plan.ended_s
            if end_s is None or run.path is None or end_s > sharing.until_s:
                continue
            names = [domain.name for domain in run.feed.domains]
            if sharing.ledger.settled(names, end_s) or now_s - end_s > HOLD_S:
                self._close(run, end_s, now_s, self.book.status_of(run.plan))
        rolled = self._roll_unattributed(now_s)
        if (rolled or len(self.book.runs) < before) and self.on_run_ended is not None:
            self.on_run_ended()

    def _roll_unattributed(self, now_s: float) -> bool:
        unattributed, until_s = self.book.unattributed, self.sharing.until_s
        limit_s = self.site.config.unallocated_hours * 3_600
        if (
            unattributed is None
            or unattributed.path is None
            or until_s - unattributed.plan.started_s < limit_s
        ):
            return False
        self._close(unattributed, until_s, now_s, RunStatus.FINISHED)
        self.sharing.ledger.renew_unattributed()
        fresh = self.book.open_unattributed(until_s)
        fresh.first_row(self.sharing.account_of(fresh))
        return True

    def _close(self, run: OpenRun, end_s: float, now_s: float, status: RunStatus) -> None:
        sharing = self.sharing
        account = sharing.account_of(run)
        run.row(end_s, account, sharing.gaps([d.name for d in run.feed.domains], end_s))
        fault = run.end(now_s, self.book.end_of(run, end_s, account, status))
        if fault is not None:
            self.fault(f"the end of run {run.plan.run_id} could not be kept: {fault}")
        if run.plan.job:
            sharing.ledger.close(run.plan.run_id)
            del self.book.runs[run.plan.run_id]

    def _note_young(self, young: bool) -> None:
        self._young_s = self.site.clock.now_s() + YOUNG_LOOK_S if young else float("inf")

    def _plan_next(self, begun_s: float) -> None:
        """Plan the next reading: after an interval, or as soon as an event can be handled."""
        ending = any(run.plan.ended_s is not None for run in self.book.runs.values())
        interval_s = self.site.config.interval_s
        if ending or self.arrivals.waiting:
            interval_s = min(interval_s, self.sharing.sensors.lag_s + LOOK_S)
        self._due_s = begun_s + interval_s
