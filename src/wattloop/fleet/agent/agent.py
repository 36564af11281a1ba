"""The agent: reads the node, notices jobs, shares the energy out, writes it down; every second."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from wattloop.control.daemon.job_gpus import JobGpus
from wattloop.core.records import RunStatus
from wattloop.fleet.agent.cpu_time import CpuTimes, JobKey
from wattloop.fleet.agent.desk import Desk
from wattloop.fleet.agent.events import EventFolder, Instant, JobEvent
from wattloop.fleet.agent.idle_power import IdlePower, fitted_idle_w
from wattloop.fleet.agent.job_run import JobRun
from wattloop.fleet.agent.ledger import Account, Ledger
from wattloop.fleet.agent.node_energy import NodeEnergy
from wattloop.fleet.agent.resume import resumed
from wattloop.fleet.agent.run_book import RunBook
from wattloop.fleet.agent.shares import NOBODY, Layout, Stretch
from wattloop.fleet.agent.site import Site
from wattloop.fleet.agent.state import AgentState, KeptRun, load_state, save_state
from wattloop.measure.meter import Context
from wattloop.measure.spans import BRIDGE_S

__all__ = ["STATE_FILE", "Agent"]

STATE_FILE = "state.json"
LOOK_S = 0.05
"""How often the folder of events is looked at: a few microseconds each time."""
YOUNG_S, YOUNG_LOOK_S = 5.0, 0.25
"""The CPU time of a job that has just begun is looked at more often: it may be over soon."""
HOLD_S = 5.0
"""How long the end of a run waits for a sensor that is silent."""
HANDLED_KEPT = 500
LATE_S = 1.0

_log = logging.getLogger("wattloop.agent")


class Agent:
    """One node. `start`, then `work` (or `look` again and again), then `stop`."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.faults: list[str] = []
        """What an operator should know, the last ones."""
        self.events = EventFolder(site.folder / "events")
        self.sensors = NodeEnergy(Context(site.host, site.settings, site.clock))
        self.layout = Layout(self.sensors.domains, site.cpus)
        self.book = RunBook(site, self.sensors, self.layout)
        self.cpu = CpuTimes(site.host, Path(site.config.cgroup_root), site.node)
        shared = {n: d for n, d in self.layout.domains.items() if self.layout.is_shared(n)}
        self.idle = IdlePower(
            shared, site.config.cpu_idle_w, fitted_idle_w(site.settings, site.host)
        )
        self.desk = Desk(site.config, site.folder)
        self.ledger = Ledger(self.layout, {})
        self.until_s = 0.0
        self.on_run_ended: Callable[[], None] | None = None
        self.on_step: Callable[[], None] | None = None
        self._coming: list[tuple[float, JobEvent]] = []
        self._handled: dict[str, None] = {}
        self._total_j: dict[str, float] = {}
        self._due_s = self._young_s = 0.0

    def start(self) -> None:
        """Take up what an earlier agent left, or begin."""
        self.site.journals.mkdir(parents=True, exist_ok=True)
        self.site.folder.chmod(0o700)
        self.events.prepare()
        state, reason = load_state(self.site.folder / STATE_FILE)
        if reason:
            self.fault(reason)
        self.sensors.read()
        self.sensors.read_signals()
        self.until_s = resumed(self, state)
        self.desk.start()
        for plan in self.book.running():
            self.desk.job_began(plan.run_id, plan.job, plan.uid, plan.gpus)
        self._tell_jobs()
        self.step()

    def work(self, stop: threading.Event) -> None:
        """Until told to stop; `start` before and `stop` after."""
        while not stop.is_set():
            self.look()
            stop.wait(LOOK_S)

    def look(self) -> None:
        """See whether something is due: an event, a reading, a young job's CPU time."""
        now_s = self.site.clock.now_s()
        if (self.events.changed() and self._fetch_events()) or now_s >= self._due_s:
            self.step()
        elif now_s >= self._young_s:
            self._read_cpu(now_s)

    def step(self) -> None:
        """Read everything, and share out what is known up to a moment ago."""
        clock, sensors = self.site.clock, self.sensors
        begun_s = clock.now_s()
        sensors.read()
        now_s = clock.now_s()
        self._read_cpu(now_s)
        sensors.read_signals()
        self._fetch_events()
        until_s = max(self.until_s, begun_s - sensors.lag_s)
        self._share_out(until_s)
        for answer in self.desk.answers():
            self.book.answered(answer)
        for fault in self.book.write_headers(now_s):
            self.fault(fault)
        self._write_rows(until_s, now_s)
        self._end_runs(now_s)
        sensors.keep_memory_small(now_s)
        self._plan_next(begun_s)
        if self.on_step is not None:
            self.on_step()

    def stop(self) -> None:
        """Let go of everything; jobs that run on are taken up by the next agent."""
        self.step()
        self.desk.stop()
        for run in self.book.all():
            run.let_go(self.site.clock.now_s())
        self.sensors.close()

    def remember(self, handled: Iterable[str]) -> None:
        """Events that an earlier agent dealt with."""
        self._handled = dict.fromkeys(handled)

    def fault(self, text: str) -> None:
        """Say it once in the log, and keep it for the status."""
        if text not in self.faults:
            _log.warning("%s", text)
            self.faults = [*self.faults[-9:], text]

    # -- events ----------------------------------------------------------------------------

    def _fetch_events(self) -> bool:
        """New events from the folder, in the order of their times; whether there are any."""
        found, strange = self.events.waiting()
        for name in strange:
            self.fault(f"{self.events.path / name}: makes no sense; set aside")
            self.events.set_aside(name)
        known = {event.name for _, event in self._coming}
        fresh = [e for e in found if e.name not in known and e.name not in self._handled]
        for event in found:
            if event.name in self._handled:
                self.events.remove(event.name)
        if fresh:
            instant = Instant(self.site.clock, self.site.uptime_s())
            self._coming += [(instant.time_of(event), event) for event in fresh]
            self._coming.sort(key=lambda pair: (pair[0], pair[1].kind == "start"))
        return bool(fresh)

    def apply(self, event: JobEvent, time_s: float, said_s: float) -> None:
        """A job begins or ends at `time_s`; its event said `said_s`."""
        self._handled[event.name] = None
        if event.boot and self.site.host.boot_id and event.boot != self.site.host.boot_id:
            _log.warning("job %s: its %s was before the node's boot", event.job, event.kind)
            return
        open_run = self.book.of_job(event.job)
        # The epilog of a job that is requeued counts the restart already; its prolog did not.
        restart = event.facts.get("restart", "")
        same = open_run is not None and open_run.plan.facts.get("restart", "") == restart
        if event.kind == "end":
            if open_run is None:
                _log.warning("job %s ended, but its beginning was never seen", event.job)
                return
            code = event.facts.get("exit", "")
            open_run.plan.exit_code = int(code) if code.isdigit() else None
            self._ended(open_run, time_s)
            return
        if open_run is not None:
            if same:
                _log.warning("job %s begins a second time: ignored", event.job)
                return
            open_run.plan.note("its end was never heard of; it ends where the job began again")
            self._ended(open_run, time_s)
        plan = self.book.plan_of(event, time_s)
        if time_s - said_s > LATE_S:
            plan.note(f"began {time_s - said_s:.0f} s before it was measured")
        run = self.book.open(plan)
        run.first_row(self.ledger.open(plan.run_id))
        self.cpu.begin(plan.run_id, time_s)
        self.desk.job_began(plan.run_id, plan.job, plan.uid, plan.gpus)
        self._tell_jobs()

    def _ended(self, run: JobRun, time_s: float) -> None:
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

    # -- energy ----------------------------------------------------------------------------

    def _share_out(self, until_s: float) -> None:
        stretches = []
        begin_s = self.until_s
        while self._coming and self._coming[0][0] <= until_s:
            said_s, event = self._coming.pop(0)
            time_s = max(said_s, begin_s)
            if time_s > begin_s:
                stretches.append(self._stretch(begin_s, time_s))
                begin_s = time_s
            self.apply(event, time_s, said_s)
        if until_s > begin_s:
            stretches.append(self._stretch(begin_s, until_s))
        self.until_s = until_s
        self.ledger.extend(stretches)
        before_s = dict(self.ledger.done_s)
        self.ledger.settle(self._take, self.sensors.readable, self.idle.watts)
        self._mark_holes(before_s)
        self.idle.saw(self._total_j, until_s)

    def _take(self, name: str, until_s: float) -> float:
        joules = self.sensors.take(name, until_s)
        self._total_j[name] = self._total_j.get(name, 0.0) + joules
        return joules

    def _stretch(self, begin_s: float, end_s: float) -> Stretch:
        running = self.book.running()
        occupants = tuple(
            self.book.occupant(plan, self.cpu.between(plan.run_id, begin_s, end_s))
            for plan in running
        )
        if self.book.nobody is not None:
            held = min(1.0, sum(plan.cpus for plan in running) / self.site.cpus)
            self.book.nobody.plan.free_s += (1 - held) * (end_s - begin_s)
        return Stretch(begin_s, end_s, occupants, self.cpu.busy_between(begin_s, end_s))

    def _mark_holes(self, before_s: dict[str, float]) -> None:
        """Counters of runs begin anew where nobody knows what a sensor missed."""
        for name, done_s in self.ledger.done_s.items():
            begin_s = before_s.get(name, done_s)
            if done_s - begin_s > BRIDGE_S and (
                self.sensors.hole_s(name, begin_s, done_s) > BRIDGE_S
            ):
                for run in self.book.all():
                    run.begin_anew(name, self.account_of(run).energy_j.get(name, 0.0))

    def account_of(self, run: JobRun) -> Account:
        """The joules of a run."""
        return self.ledger.accounts[run.plan.run_id if run.plan.job else NOBODY]

    def _read_cpu(self, now_s: float) -> None:
        running = self.book.running()
        self.cpu.read([JobKey(p.run_id, p.job, p.uid) for p in running], now_s)
        young = any(now_s - plan.started_s < YOUNG_S for plan in running)
        self._young_s = now_s + YOUNG_LOOK_S if young else float("inf")

    # -- writing down ----------------------------------------------------------------------

    def _write_rows(self, until_s: float, now_s: float) -> None:
        try:
            save_state(self.site.folder / STATE_FILE, self._state())
        except OSError as error:
            self.fault(f"{self.site.folder / STATE_FILE}: {error.strerror or error}")
            return  # the state must never be behind the journals
        for name in [n for n in self._handled if (self.events.path / n).exists()]:
            self.events.remove(name)
        values = self.sensors.signals()
        gaps = {
            name: self.sensors.reasons.get(name, "not read")
            for name, done_s in self.ledger.done_s.items()
            if done_s < until_s
        }
        for run in self.book.all():
            end_s = run.plan.ended_s
            if end_s is None:
                run.row(until_s, self.account_of(run), gaps)
                run.signals_row(now_s, values)
            run.flush(now_s)

    def _state(self) -> AgentState:
        clock = self.site.clock
        kept = [
            KeptRun(
                plan=run.plan,
                account=self.account_of(run).to_state(),
                offsets_j=run.offsets_j,
                cpu_s=self.cpu.last(run.plan.run_id),
                journal=run.path is not None,
            )
            for run in self.book.all()
        ]
        self._handled = dict.fromkeys(list(self._handled)[-HANDLED_KEPT:])
        return AgentState(
            boot_id=self.site.host.boot_id,
            until_s=self.until_s,
            wall_s=clock.wall_s(),
            sensors=self.sensors.to_state(self.until_s),
            idle=self.idle.to_state(),
            runs=kept,
            handled=list(self._handled),
        )

    def _end_runs(self, now_s: float) -> None:
        """Close what has ended, and begin a new run for nobody when the old one is long."""
        ended = False
        for run in list(self.book.runs.values()):
            end_s = run.plan.ended_s
            names = [domain.name for domain in run.feed.domains]
            if end_s is None or run.path is None or end_s > self.until_s:
                continue
            if self.ledger.settled(names, end_s) or now_s - end_s > HOLD_S:
                self._close(run, end_s, now_s, self.book.status_of(run.plan))
                ended = True
        nobody = self.book.nobody
        limit_s = self.site.config.unallocated_hours * 3_600
        if nobody is not None and nobody.path and self.until_s - nobody.plan.started_s >= limit_s:
            self._close(nobody, self.until_s, now_s, RunStatus.FINISHED)
            self.ledger.renew_nobody()
            fresh = self.book.open_nobody(self.until_s)
            fresh.first_row(self.account_of(fresh))
            ended = True
        self.cpu.forget_before(self.until_s - 1.0, self.book.runs)
        if ended and self.on_run_ended is not None:
            self.on_run_ended()

    def _close(self, run: JobRun, end_s: float, now_s: float, status: RunStatus) -> None:
        account = self.account_of(run)
        names = [d.name for d in run.feed.domains if self.ledger.done_s.get(d.name, end_s) < end_s]
        run.row(end_s, account, {n: self.sensors.reasons.get(n, "not read") for n in names})
        fault = run.end(now_s, self.book.end_of(run, end_s, account, status))
        if fault is not None:
            self.fault(f"the end of run {run.plan.run_id} could not be kept: {fault}")
        if run.plan.job:
            self.ledger.close(run.plan.run_id)
            del self.book.runs[run.plan.run_id]

    def _plan_next(self, begun_s: float) -> None:
        soon = self._coming or any(r.plan.ended_s is not None for r in self.book.runs.values())
        lag_s = self.sensors.lag_s + LOOK_S
        self._due_s = begun_s + (min(lag_s, self.site.config.interval_s) if soon else
                                 self.site.config.interval_s)  # fmt: skip
