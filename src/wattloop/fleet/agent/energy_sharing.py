"""Share the energy of the node among its jobs: sensors, CPU times, idle power and ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from wattloop.accounting.idle import idle_path, load_idle
from wattloop.core.errors import WattloopError
from wattloop.core.records import Domain, Scope
from wattloop.core.settings import Settings
from wattloop.fleet.agent.agent_context import AgentContext
from wattloop.fleet.agent.attribution import (
    UNATTRIBUTED,
    Account,
    EnergyLedger,
    NodeLayout,
    SharedInterval,
)
from wattloop.fleet.agent.cpu_time import CpuTimes, JobKey
from wattloop.fleet.agent.event_queue import EventQueue, JobEvent
from wattloop.fleet.agent.job_run import JobRun
from wattloop.fleet.agent.node_energy import NodeSensors
from wattloop.fleet.agent.open_runs import OpenRuns
from wattloop.hardware.host import Host
from wattloop.measure.energy_curve import BRIDGE_S
from wattloop.meters.base import Context

OVER_S = 10.0


"""The least mean power over so long: shorter ones are noise of the sensor."""


class IdlePower:
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


def fitted_idle_w(settings: Settings, host: Host) -> dict[str, float]:
    """Return the slopes of this machine's idle lines; {} without them."""
    try:
        record = load_idle(idle_path(settings.store_location, host.machine_id))
    except WattloopError:
        return {}
    return {} if record is None else {name: line.beta_w for name, line in record.lines.items()}


Apply = Callable[[JobEvent, float, float], None]


"""Told an event, when it takes effect, and when it says it happened."""


YOUNG_S = 5.0


class EnergySharing:
    """Attribution of the node's energy, complete up to `until_s`."""

    def __init__(self, site: AgentContext) -> None:
        self.site = site
        self.sensors = NodeSensors(Context(site.host, site.settings, site.clock))
        self.layout = NodeLayout(self.sensors.domains, site.cpus)
        self.book = OpenRuns(site, self.sensors, self.layout)
        self.cpu = CpuTimes(site.host, Path(site.config.cgroup_root), site.node)
        shared = {n: d for n, d in self.layout.domains.items() if self.layout.is_shared(n)}
        fitted_w = fitted_idle_w(site.settings, site.host)
        self.idle = IdlePower(shared, site.config.cpu_idle_w, fitted_w)
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

    def account_of(self, run: JobRun) -> Account:
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
