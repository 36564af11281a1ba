"""What the node uses, and who gets it: sensors, CPU times and ledger, kept together."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from wattloop.fleet.agent.arrivals import Arrivals
from wattloop.fleet.agent.cpu_time import CpuTimes, JobKey
from wattloop.fleet.agent.events import JobEvent
from wattloop.fleet.agent.idle_power import IdlePower, fitted_idle_w
from wattloop.fleet.agent.job_run import JobRun
from wattloop.fleet.agent.ledger import Account, Ledger
from wattloop.fleet.agent.node_energy import NodeEnergy
from wattloop.fleet.agent.run_book import RunBook
from wattloop.fleet.agent.shares import NOBODY, Layout, Stretch
from wattloop.fleet.agent.site import Site
from wattloop.measure.energy_curve import BRIDGE_S
from wattloop.meters.base import Context

__all__ = ["Sharing"]

Apply = Callable[[JobEvent, float, float], None]
"""Told an event, when it takes effect, and when it says it happened."""
YOUNG_S = 5.0


class Sharing:
    """The node's energy, shared out up to `until_s`."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.sensors = NodeEnergy(Context(site.host, site.settings, site.clock))
        self.layout = Layout(self.sensors.domains, site.cpus)
        self.book = RunBook(site, self.sensors, self.layout)
        self.cpu = CpuTimes(site.host, Path(site.config.cgroup_root), site.node)
        shared = {n: d for n, d in self.layout.domains.items() if self.layout.is_shared(n)}
        fitted_w = fitted_idle_w(site.settings, site.host)
        self.idle = IdlePower(shared, site.config.cpu_idle_w, fitted_w)
        self.ledger = Ledger(self.layout, {})
        self.until_s = 0.0
        self._total_j: dict[str, float] = {}

    def read(self) -> bool:
        """Read every sensor and every job's CPU time; returns what `read_cpu` does."""
        self.sensors.read()
        young = self.read_cpu()
        self.sensors.read_signals()
        return young

    def read_cpu(self) -> bool:
        """Look at CPU times; whether a job is so young that it may be over before the next look."""
        now_s = self.site.clock.now_s()
        running = self.book.running()
        self.cpu.read([JobKey(p.run_id, p.job, p.uid) for p in running], now_s)
        return any(now_s - plan.started_s < YOUNG_S for plan in running)

    def share_out(self, until_s: float, arrivals: Arrivals, apply: Apply) -> None:
        """Share out everything up to an instant, with jobs coming and going on the way."""
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
        """The joules of a run."""
        return self.ledger.accounts[run.plan.run_id if run.plan.job else NOBODY]

    def gaps(self, names: list[str], until_s: float) -> dict[str, str]:
        """Which of these domains are not known up to an instant, and why."""
        return {
            name: self.sensors.reasons.get(name, "not read")
            for name in names
            if self.ledger.done_s.get(name, until_s) < until_s
        }

    def forget(self) -> None:
        """Keep memory small."""
        self.cpu.forget_before(self.until_s - 1.0, self.book.runs)
        self.sensors.keep_memory_small(self.site.clock.now_s())

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
        """Counters of runs begin anew where nobody knows what a sensor missed; where it is
        modelled, runs say so.
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
                    run.begin_anew(name, self.account_of(run).energy_j.get(name, 0.0))
