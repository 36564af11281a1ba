"""The agent of a node: read sensors, follow jobs, attribute energy, write journals; its service."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from wattloop.control.daemon.job_gpus import JobGpus
from wattloop.control.daemon.trusted_file import check_folder
from wattloop.core.errors import ConfigError, StoreError
from wattloop.core.files import FileLock
from wattloop.core.process import BackgroundThread
from wattloop.core.records import Gap, Provenance
from wattloop.core.results import RunStatus
from wattloop.fleet.agent.config import AgentContext
from wattloop.fleet.agent.job_caps import (
    JobSaver,
    JobSetup,
    JobSetupThread,
    SavedJob,
    save_refusal,
)
from wattloop.fleet.agent.job_events import EventQueue, JobEvent, SlurmSource
from wattloop.fleet.agent.job_facts import JobSource
from wattloop.fleet.agent.job_shares import Account
from wattloop.fleet.agent.live_metrics import AgentMetrics
from wattloop.fleet.agent.node_attribution import (
    STATE_FILE,
    STATUS_FILE,
    NodeAttribution,
    load_state,
    save_state,
)
from wattloop.fleet.agent.open_runs import OpenRun, number
from wattloop.fleet.agent.program_progress import JobPrograms
from wattloop.fleet.delivery.node_status import NodeStatus, write_status
from wattloop.fleet.delivery.sender import Delivery
from wattloop.measure.metrics_endpoint import open_metrics
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.store.database import open_store
from wattloop.store.journal_import import import_journal
from wattloop.version import __version__

POLL_S = 0.05
"""Interval of polls of the events folder, which take a few microseconds."""
YOUNG_POLL_S = 0.25
"""CPU time of a job that has just begun is read more often: the job may end soon."""
HOLD_S = 5.0
"""Time for which the end of a run waits for a silent sensor."""
LATE_S = 1.0
FAULT_PAUSE_S = 1.0
_log = logging.getLogger("wattloop.agent")


class Agent:
    """The agent of one node. `start`, then `work` (or `poll` repeatedly), then `stop`."""

    def __init__(
        self,
        context: AgentContext,
        savers: JobSaver | None = None,
        source: JobSource | None = None,
    ) -> None:
        self.context = context
        self.source: JobSource = source or SlurmSource(context.config, context.node)
        self._savers = savers if context.config.save is not None else None
        self.faults: list[str] = []
        """The last messages for the operator."""
        self.events = EventQueue(context, self.fault)
        self.attribution = NodeAttribution(context, self.source)
        self.open_runs = self.attribution.open_runs
        self.job_setup = JobSetupThread(context.config, context.folder, self.source)
        self.on_run_ended: Callable[[], None] | None = None
        self.on_step: Callable[[], None] | None = None
        self.on_job_closed: Callable[[OpenRun, Account], None] | None = None
        self.attribution.sensors.on_gap = self._gap
        self._due_s = self._young_s = 0.0

    def start(self) -> None:
        """Resume from the state of an earlier agent, or begin."""
        self.context.journals.mkdir(parents=True, exist_ok=True)
        self.context.folder.chmod(0o700)
        self.events.prepare()
        state, reason = load_state(self.context.folder / STATE_FILE)
        if reason:
            self.fault(reason)
        self.attribution.read()
        if state is not None:
            self.events.remember(state.handled)
        self.attribution.resume(state)
        self.job_setup.start()
        for run in self.open_runs.runs.values():
            plan = run.plan
            if plan.ended_s is None:
                self.job_setup.job_began(plan.run_id, plan.job, plan.uid, plan.gpus)
            elif not plan.asked:
                self.job_setup.ask_facts(plan.run_id, plan.job)
        self._report_jobs()
        self.step()

    def work(self, stop: threading.Event) -> None:
        """Work until stopped; `start` before and `stop` after."""
        while not stop.is_set():
            try:
                self.poll()
            except Exception as error:  # noqa: BLE001 - jobs are measured on whatever goes wrong
                self.fault(f"{type(error).__name__}: {error}")
                _log.exception("the agent goes on")
                stop.wait(FAULT_PAUSE_S)
            stop.wait(POLL_S)

    def poll(self) -> None:
        """Handle what is due: an event, a reading, a young job's CPU time."""
        now_s = self.context.clock.now_s()
        if self.events.changed() or now_s >= self._due_s:
            self.step()
        elif now_s >= self._young_s:
            self._note_young(self.attribution.read_cpu())

    def step(self) -> None:
        """Read everything, and attribute the energy that is known up to a moment ago."""
        attribution, clock = self.attribution, self.context.clock
        begun_s = clock.now_s()
        self._note_young(attribution.read())
        self.events.fetch()
        until_s = max(attribution.until_s, begun_s - attribution.sensors.lag_s)
        attribution.attribute(until_s, self.events, self._apply)
        for answer in self.job_setup.answers():
            self.open_runs.apply_setup(answer)
            self._save_energy(answer)
        now_s = clock.now_s()
        for fault in self.open_runs.write_headers(now_s):
            self.fault(fault)
        if self._save_state():
            self.events.clean()
            self._write_rows(until_s, now_s)
            self._end_runs(now_s)
        attribution.forget()
        self._plan_next(begun_s)
        if self.on_step is not None:
            self.on_step()

    def stop(self) -> None:
        """Release everything; the next agent resumes running jobs."""
        self.step()
        if self._savers is not None:
            self._savers.close()
        self.job_setup.stop()
        for run in self.open_runs.all():
            run.release(self.context.clock.now_s())
        self.attribution.sensors.close()

    def fault(self, text: str) -> None:
        """Log an error once, and keep it for the status."""
        if text not in self.faults:
            _log.warning("%s", text)
            self.faults = [*self.faults[-9:], text]

    def _gap(self, time_s: float, domain: str, gap: Gap) -> None:
        """Report a sensor that failed or gave an implausible value to the operator and its jobs."""
        self.fault(gap.reason if domain in gap.reason else f"{domain}: {gap.reason}")
        fact = {"type": "gap", "time_s": time_s, "domain": domain, **gap._asdict()}
        for run in self.open_runs.all():
            if run.has(domain):
                run.event(fact)

    # -- jobs ------------------------------------------------------------------------------

    def _apply(self, event: JobEvent, time_s: float, stated_s: float) -> None:
        """Begin or end a job at `time_s`; its event was stamped `stated_s`. Never raises."""
        try:
            self._begin_or_end(event, time_s, stated_s)
        except Exception as error:  # noqa: BLE001 - one odd event must not cost the other jobs
            self.fault(f"{event.name}: {type(error).__name__}: {error}")
            _log.exception("%s", event.name)

    def _begin_or_end(self, event: JobEvent, time_s: float, stated_s: float) -> None:
        run = self.open_runs.find(event.job)
        if event.kind == "end":
            if run is None:
                _log.warning("job %s ended, but its beginning was never seen", event.job)
                return
            if "lost" in event.facts:
                run.plan.died = True
                run.plan.note("its end was never heard of; Slurm does not have it here any more")
            code = event.facts.get("exit", "")
            run.plan.exit_code = int(code) if code.isdigit() else None
            self._end_job(run, time_s)
            return
        if run is not None:
            if self.open_runs.is_same_start(event, run):
                _log.warning("job %s begins a second time: ignored", event.job)
                return
            run.plan.note("its end was never heard of; it ends where the job began again")
            self._end_job(run, time_s)
        plan = self.open_runs.plan(event, time_s)
        if time_s - stated_s > LATE_S:
            plan.note(f"began {time_s - stated_s:.0f} s before it was measured")
        fresh = self.open_runs.open(plan)
        fresh.first_row(self.attribution.ledger.open(plan.run_id))
        self.attribution.cpu.begin(plan.run_id, time_s, number(event.facts.get("cpu_s")))
        self._report_jobs()  # before its prolog goes on: the job may ask for its GPUs at once
        self.job_setup.job_began(plan.run_id, plan.job, plan.uid, plan.gpus)

    def _save_energy(self, setup: JobSetup) -> None:
        """Begin the saver of a job, within the operator's rules."""
        run, rules = self.open_runs.runs.get(setup.run_id), self.context.config.save
        if self._savers is None or rules is None or run is None or run.plan.ended_s is not None:
            return
        plan = run.plan
        if not plan.gpus:
            return
        others = (p for p in self.open_runs.running() if p.run_id != plan.run_id)
        sharing = next((p.job for p in others if set(p.gpus) & set(plan.gpus)), "")
        name = plan.facts.get("name", "")
        job = SavedJob(plan.run_id, plan.job, plan.uid, plan.user, name, tuple(plan.gpus))
        self._savers.begin(job, save_refusal(rules, setup.facts, setup.cap_w, sharing))

    def _end_job(self, run: OpenRun, time_s: float) -> None:
        run.plan.ended_s = time_s
        if self._savers is not None:
            self._savers.end(run.plan.run_id)
        self.job_setup.job_ended(run.plan.job)
        self._report_jobs()

    def _report_jobs(self) -> None:
        self.job_setup.set_owners(
            [
                JobGpus(p.job, p.uid, tuple(int(gpu.partition(":")[2]) for gpu in p.gpus))
                for p in self.open_runs.running()
                if p.uid >= 0
            ]
        )

    # -- writing down ----------------------------------------------------------------------

    def _save_state(self) -> bool:
        """Save the state before anything else is written: it is never behind the journals."""
        state = self.attribution.to_state(self.events.handled)
        try:
            save_state(self.context.folder / STATE_FILE, state)
        except OSError as error:
            self.fault(f"{self.context.folder / STATE_FILE}: {error.strerror or error}")
            return False
        return True

    def _write_rows(self, until_s: float, now_s: float) -> None:
        attribution = self.attribution
        values = attribution.sensors.signals()
        gaps = attribution.gaps(list(attribution.layout.domains), until_s)
        for run in self.open_runs.all():
            if run.plan.ended_s is None:
                run.row(until_s, attribution.account_of(run), gaps)
                run.signals_row(now_s, values)
            run.flush(now_s)

    def _end_runs(self, now_s: float) -> None:
        """Close ended runs; begin a new unattributed run when the current one is long."""
        attribution, before = self.attribution, len(self.open_runs.runs)
        for run in list(self.open_runs.runs.values()):
            end_s = run.plan.ended_s
            if end_s is None or run.path is None or end_s > attribution.until_s:
                continue
            names = [domain.name for domain in run.feed.domains]
            known = self._savers is None or self._savers.result(run.plan.run_id) is not None
            complete = attribution.ledger.is_complete(names, end_s)
            if complete:  # the curve ends here; later corrections are in the record alone
                run.row(end_s, attribution.account_of(run), attribution.gaps(names, end_s))
            if run.plan.exit_code is None and not run.plan.died:
                run.plan.exit_code = self.source.exit_status(run.plan.job)
                unknown = run.plan.exit_code is None
                if unknown and self.source.awaits_exit(run.plan.job, now_s - end_s):
                    continue
            if not attribution.ledger.is_settled(run.plan.run_id, now_s - end_s):
                continue
            if (complete and (known or not run.plan.gpus)) or now_s - end_s > HOLD_S:
                self._close(run, end_s, now_s, run.plan.status)
        rolled = self._roll_unattributed(now_s)
        if (rolled or len(self.open_runs.runs) < before) and self.on_run_ended is not None:
            self.on_run_ended()

    def _roll_unattributed(self, now_s: float) -> bool:
        unattributed, until_s = self.open_runs.unattributed, self.attribution.until_s
        limit_s = self.context.config.unallocated_hours * 3_600
        if (
            unattributed is None
            or unattributed.path is None
            or until_s - unattributed.plan.started_s < limit_s
        ):
            return False
        self._close(unattributed, until_s, now_s, RunStatus.FINISHED)
        self.attribution.ledger.renew_unattributed()
        self.attribution.open_unattributed(until_s)
        return True

    def _close(self, run: OpenRun, end_s: float, now_s: float, status: RunStatus) -> None:
        attribution = self.attribution
        account = attribution.account_of(run)
        run.row(end_s, account, attribution.gaps([d.name for d in run.feed.domains], end_s))
        saving = None if self._savers is None else self._savers.result(run.plan.run_id)
        fault = run.end(now_s, self.open_runs.end_record(run, end_s, account, status, saving))
        if fault is not None:
            self.fault(f"the end of run {run.plan.run_id} could not be kept: {fault}")
        if self._savers is not None:
            self._savers.forget(run.plan.run_id)
        if run.plan.job:
            attribution.ledger.close(run.plan.run_id)
            del self.open_runs.runs[run.plan.run_id]
            if self.on_job_closed is not None:
                self.on_job_closed(run, account)

    def _note_young(self, young: bool) -> None:
        self._young_s = self.context.clock.now_s() + YOUNG_POLL_S if young else float("inf")

    def _plan_next(self, begun_s: float) -> None:
        """Plan the next reading: after an interval, or as soon as an event can be handled."""
        ends_s = (run.plan.ended_s for run in self.open_runs.runs.values())
        ending = any(end_s is not None and begun_s - end_s <= HOLD_S for end_s in ends_s)
        interval_s = self.context.config.interval_s
        if ending or self.events.waiting:
            interval_s = min(interval_s, self.attribution.sensors.lag_s + POLL_S)
        self._due_s = begun_s + interval_s


IMPORT_AGAIN_S = 60.0


class AgentService:
    """An agent that runs until stopped."""

    def __init__(
        self,
        context: AgentContext,
        savers: JobSaver | None = None,
        source: JobSource | None = None,
    ) -> None:
        self.context = context
        self._savers, self._source = savers, source
        self.stop = threading.Event()
        self._status: NodeStatus | None = None
        self._programs = JobPrograms(context.host.procfs, context.node)
        self._metrics = AgentMetrics(self._programs)
        self.metrics_port: int | None = None
        """Port of the metrics, where they are asked for."""

    def run(self) -> None:
        """Work until `stop` is set.

        Raises:
            ConfigError: the folder cannot be used, or another agent works in it.
        """
        with _locked(self.context.folder):
            context, sender = self.context, None
            config, events = context.config, context.folder / "events"
            agent = Agent(context, self._savers, self._source)
            agent.start()  # locks its journals before they are sent
            try:
                # Threads that treat an unlocked journal as finished stop before the agent.
                with ExitStack() as threads:
                    threads.enter_context(agent.source.follower(events, self._jobs))
                    if config.deliver is not None:
                        options = config.delivery_options(context.node)
                        sender = Delivery(options, lambda: self._status)
                        threads.enter_context(sender)
                    else:
                        store = threads.enter_context(LocalStore(context))
                        agent.on_run_ended = store.run_ended
                    if config.metrics is not None:
                        endpoint = open_metrics(config.metrics, self._metrics.families)
                        threads.enter_context(endpoint)
                        threads.enter_context(self._programs)
                        self.metrics_port = endpoint.port
                        agent.on_job_closed = partial(self._metrics.close_job, agent)
                    agent.on_step = lambda: self._report(agent, sender)
                    agent.work(self.stop)
            finally:
                agent.stop()

    def _jobs(self) -> tuple[str, ...]:
        return () if self._status is None else self._status.jobs

    def _report(self, agent: Agent, sender: Delivery | None) -> None:
        faults = [*agent.faults, agent.job_setup.fault, "" if sender is None else sender.fault]
        faults = [fault for fault in faults if fault]
        self._status = node_status(agent, faults)
        if self.context.config.metrics is not None:
            waiting = sum(1 for _ in self.context.journals.glob("*.journal"))
            self._metrics.update(agent, faults, max(0, waiting - len(agent.open_runs.all())))
        try:
            write_status(self.context.folder / STATUS_FILE, self._status)
        except OSError as error:
            agent.fault(f"{self.context.folder / STATUS_FILE}: {error.strerror or error}")


def node_status(agent: Agent, faults: list[str]) -> NodeStatus:
    layout = agent.attribution.layout
    watts = {n: w for n, w in agent.attribution.sensors.power_w().items() if w >= 0}
    whole = {n: w for n, w in watts.items() if layout.is_node(n)}
    parts = {n: w for n, w in watts.items() if n in layout.counted}
    shown = whole or parts
    limits = {
        name.removesuffix("/power_limit"): value
        for name, value in agent.attribution.sensors.signals().items()
        if name.endswith("/power_limit") and value > 0
    }
    provenances = [layout.domains[name].provenance for name in shown]
    return NodeStatus(
        power_w=shown,
        limit_w=limits,
        provenance=Provenance.weakest(provenances).value if provenances else "",
        jobs=tuple(plan.job for plan in agent.open_runs.running()),
        faults=tuple(faults),
        read_wall_s=agent.context.clock.wall_s(),
        version=__version__,
    )


class LocalStore(BackgroundThread):
    """Thread that imports ended runs into the node's own store."""

    def __init__(self, context: AgentContext) -> None:
        super().__init__("wattloop-import", patience_s=10.0)
        self._context = context
        self._wake = threading.Event()

    def run_ended(self) -> None:
        """Wake the import: a run has ended."""
        self._wake.set()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._wake.set()
        super().__exit__()

    def _work(self) -> None:
        while True:
            self._wake.clear()
            try:
                self._import_all()
            except Exception:  # noqa: BLE001 - journals stay; the next try may work
                _log.exception("runs wait in %s", self._context.journals)
            if self._stop.is_set():
                return
            self._wake.wait(IMPORT_AGAIN_S)

    def _import_all(self) -> None:
        paths = sorted(self._context.journals.glob("*.journal"))
        if not paths:
            return
        try:
            with open_store(self._context.store) as store:
                for path in paths:
                    import_journal(store, path, finalize_orphaned_run)
        except (StoreError, ConfigError) as error:
            _log.warning("runs wait in %s: %s", self._context.journals, error)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            check_folder(folder)  # its files tell root's agent which jobs there are
        lock = FileLock(folder / "agent.lock", mode=0o644)
        acquired = lock.acquire()
    except OSError as error:
        raise ConfigError(
            f"folder {folder}: {error.strerror or error}; the agent needs a folder that it may "
            "write, see 'folder' in agent.yaml"
        ) from None
    if not acquired:
        raise ConfigError(f"folder {folder}: another agent works in it already")
    with lock:
        yield
