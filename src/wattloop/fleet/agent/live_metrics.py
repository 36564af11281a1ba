"""Live metrics of a node for Prometheus: power and joules by device, job and user, caps, health."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from wattloop.core.records import Domain, Provenance
from wattloop.core.text import plain
from wattloop.fleet.agent.program_progress import JobPrograms, JobProgress, ProgressRow
from wattloop.measure.metrics_endpoint import progress_families
from wattloop.measure.run_journal import RunProgress
from wattloop.store.formats.prometheus import (
    MetricFamily,
    MetricSample,
    render_families,
    shortened,
)
from wattloop.version import __version__

if TYPE_CHECKING:
    from wattloop.fleet.agent.agent import Agent
    from wattloop.fleet.agent.job_shares import Account
    from wattloop.fleet.agent.open_runs import OpenRun

MOST_JOBS = 256
"""Jobs that begin beyond it are added up as `job_id="other"`: the number of series is bounded."""
MOST_USERS = 256
"""Users and projects; those beyond it are added up as `user="other"`."""
YOUNG_S = 5.0
"""A job that has run for longer when the agent starts may have been scraped before."""
ENDED_S = 120.0
"""Time for which the joules of a job stay after its end, so that they are scraped."""
POD_LABELS = ("namespace", "pod", "container", "owner_kind", "owner")
OTHER, IDLE = "other", "unallocated"
Labels = dict[str, str]
_Series = tuple[tuple[str, str], ...]


@lru_cache(maxsize=4_096)  # the same names are shown every second
def _plain(text: str) -> str:
    return shortened(plain(text))  # before sums are made: two that are cut alike are one series


_log = logging.getLogger("wattloop.agent")


class _EndedJob(NamedTuple):
    """The last values of a job that has ended."""

    until_s: float
    energy: list[MetricSample]
    doubt: list[MetricSample]
    progress: ProgressRow | None


@dataclass(slots=True)
class _Counter:
    """A sum of joules. What an ended job gives back is taken from the next joules of the sum."""

    sum_j: float = 0.0
    _shown_j: float = 0.0

    def shown_j(self) -> float:
        """Return what to show: it never falls, since `increase()` would add all of it again."""
        self._shown_j = max(self._shown_j, self.sum_j)
        return self._shown_j


class AgentMetrics:
    """Families of the node after its last step; a scrape only renders them.

    Joules count from the start of the agent (devices, users) or of the job. A restarted agent
    starts the counters of devices, users and the other jobs at zero, which Prometheus takes for a
    reset; those of jobs continue.

    Args:
        programs: reads what programs of jobs tell; without it, jobs have no steps.
    """

    def __init__(self, programs: JobPrograms | None = None) -> None:
        self._lock = threading.Lock()
        self._families: list[MetricFamily] = []
        self._told: tuple[list[tuple[Labels, str, RunProgress]], float] = ([], 0.0)
        self._programs = programs
        self._progress: dict[str, JobProgress] = {}
        self._before: dict[tuple[str, str], tuple[float, float]] = {}
        """(run, domain) -> joules of the run and of the domain at the last change."""
        self._shares: dict[tuple[str, str], float] = {}
        self._alone: dict[str, bool] | None = None
        """Run of a job -> whether it has series of its own, for as long as it is open."""
        self._counted: dict[tuple[str, str], _Counter] = {}
        """(run, domain) -> joules of the run that are in the sums of users and other jobs."""
        self._others: dict[_Series, _Counter] = {}
        """Labels of a domain -> joules of the others, also of those that have ended."""
        self._users: dict[_Series, _Counter] = {}
        """Labels of a user -> joules of all of the user's jobs."""
        self._scraped: set[_Series | str] = set()
        """Users and runs of jobs that were scraped. A counter is zero in the first scrape, since
        `increase()` leaves out what the first sample of a series has.
        """
        self._listed: set[_Series | str] = set()
        self._shown: list[str] = []
        """Runs with series of their own, and those with steps, as `RUN/steps`."""
        self._resumed: set[str] = set()
        """Runs that began before this agent: their counters continue."""
        self._past: set[str] = set()
        """Runs that ended before this agent: how far their counters were shown is unknown."""
        self._ended: dict[str, _EndedJob] = {}
        """Job -> its last values."""
        self._cpu_s = self._began_s = 0.0

    def families(self) -> list[MetricFamily]:
        with self._lock:
            self._scraped |= self._listed
            families, told = self._families, self._told
        return [*families, *progress_families("wattloop_job", "the programs of a job", *told)]

    def render(self, openmetrics: bool) -> str:
        return render_families(self.families(), openmetrics=openmetrics)

    def update(self, agent: Agent, faults: list[str], waiting: int | None = None) -> None:
        """Take the values of a step. Called in the agent's thread."""
        begun_s = time.thread_time()
        watts = agent.attribution.sensors.power_w()
        told: list[tuple[Labels, str, RunProgress]] = []
        families = [
            *self._devices(agent, watts),
            *self._jobs(agent, watts, told),
            *self._by_user(),
            *self._health(agent, faults, waiting),
        ]
        with self._lock:
            self._families, self._listed = families, {*self._users, *self._shown}
            self._told = (told, agent.context.clock.now_s())
            self._scraped &= self._listed
        self._cpu_s += time.thread_time() - begun_s

    def _devices(self, agent: Agent, watts: Mapping[str, float]) -> Iterator[MetricFamily]:
        attribution = agent.attribution
        layout = attribution.layout
        labels = {name: _device_labels(agent, name) for name in layout.domains}
        yield _family(
            "wattloop_power_watts", "Power of a device or domain now.", "watts",
            ((labels[name], watts.get(name)) for name in labels),
        )  # fmt: skip
        yield _family(
            "wattloop_energy_joules_total",
            "Energy of a device or domain since the agent started; add up only in_total.",
            "joules",
            ((labels[name], attribution.total_j(name)) for name in labels),
        )
        yield _family(
            "wattloop_energy_uncertainty_joules",
            "Uncertainty of the energy by the sensor, since the agent started.",
            "joules",
            ((labels[name], attribution.sigma_j(name)) for name in labels),
        )
        yield from self._signals(agent)

    def _signals(self, agent: Agent) -> Iterator[MetricFamily]:
        owners = {
            gpu: (plan.job, plan.user) for plan in agent.open_runs.running() for gpu in plan.gpus
        }
        found: dict[str, list[tuple[Labels, float | None]]] = {}
        for name, value in agent.attribution.sensors.signals().items():
            device, _, signal = name.partition("/")
            if signal in SIGNALS:
                labels = {"node": agent.context.node, "device": device}
                if signal == "power_limit":
                    labels["job_id"], labels["user"] = owners.get(device, ("", ""))
                found.setdefault(signal, []).append((labels, value * SIGNALS[signal][3]))
        for signal, samples in found.items():
            yield _family(*SIGNALS[signal][:3], samples)

    def close_job(self, agent: Agent, run: OpenRun, account: Account) -> None:
        """Take the last joules of a job whose run is being closed. Called in the agent's thread."""
        run_id, now_s = run.plan.run_id, agent.context.clock.now_s()
        if self._alone is None:
            return
        alone = self._alone.setdefault(run_id, sum(self._alone.values()) < MOST_JOBS)
        energy, doubt = self._count(agent, run, account, alone)
        progress = self._job_progress(agent, run)
        if progress is not None:
            progress = progress._replace(told=progress.told._replace(last_step_s=None))
        if alone and run_id not in self._past:
            self._ended.pop(run.plan.job, None)  # to the end of the order
            self._ended[run.plan.job] = _EndedJob(now_s + ENDED_S, energy, doubt, progress)
            while len(self._ended) > MOST_JOBS:
                del self._ended[next(iter(self._ended))]
        self._progress.pop(run_id, None)

    def _count(
        self, agent: Agent, run: OpenRun, account: Account, alone: bool, resumed: bool = False
    ) -> tuple[list[MetricSample], list[MetricSample]]:
        """Count the new joules of a run; return its joules and their doubt, if it is alone.

        What a `resumed` run has used was used before this agent began.
        """
        attribution, plan = agent.attribution, run.plan
        labels = _job_labels(agent, run)
        energy, doubt = [], []
        for domain in run.feed.domains:
            joules = account.energy_j.get(domain.name)
            if joules is None:
                continue
            counted = domain.name in attribution.layout.counted
            of_domain = _domain_labels(domain, counted)
            key = (plan.run_id, domain.name)
            own_j = self._counted.setdefault(key, _Counter(joules if resumed else 0.0))
            new_j, own_j.sum_j = joules - own_j.sum_j, joules
            if plan.job and counted:
                self._add_user(labels, of_domain, new_j)
            if alone:
                own = {**labels, **of_domain}
                energy.append(MetricSample(own, own_j.shown_j(), plan.run_id))
                doubt.append(MetricSample(own, account.doubt_j(domain.name)))
            else:
                self._others.setdefault(tuple(of_domain.items()), _Counter()).sum_j += new_j
        return energy, doubt

    def _add_user(self, labels: Labels, of_domain: Labels, joules: float) -> None:
        names = {name: labels[name] for name in ("node", "cluster", "user", "project")}
        kind = {name: of_domain[name] for name in ("scope", "provenance")}
        series = tuple({**names, **kind}.items())
        if series not in self._users and len(self._users) >= MOST_USERS:
            series = tuple({**names, "user": OTHER, "project": "", **kind}.items())
        self._users.setdefault(series, _Counter()).sum_j += joules

    def _by_user(self) -> Iterator[MetricFamily]:
        yield MetricFamily(
            "wattloop_user_energy_joules_total",
            "Energy of all jobs of a user and project on this node since the agent started.",
            [
                MetricSample(dict(series), user.shown_j() if series in self._scraped else 0.0)
                for series, user in self._users.items()
            ],
            "joules",
        )

    def _jobs(
        self,
        agent: Agent,
        watts: Mapping[str, float],
        told: list[tuple[Labels, str, RunProgress]],
    ) -> Iterator[MetricFamily]:
        """Return energy and power of jobs; `told` gets what their programs tell."""
        attribution, now_s = agent.attribution, agent.context.clock.now_s()
        energy: list[MetricSample] = []
        power: list[MetricSample] = []
        doubt: list[MetricSample] = []
        rows: list[ProgressRow] = []
        values: dict[tuple[str, str], tuple[float, float]] = {}
        runs = agent.open_runs.all()
        resumed = self._alone is None
        if resumed:
            self._begin(runs, now_s)
        self._alone = alone = self._place(runs)
        if self._programs is not None:
            self._programs.follow({run.plan.run_id: run.plan for run in runs if run.plan.job})
        # a requeued job has the labels of before: two samples of one series would be refused
        latest = {
            run.plan.job: run
            for run in sorted(runs, key=lambda run: run.plan.started_s)
            if run.plan.run_id not in self._past
        }
        for run in runs:
            account = attribution.account_of(run)
            is_alone = alone.get(run.plan.run_id, True)
            found, doubts = self._count(agent, run, account, is_alone, resumed)
            # labels of a series do not change: its name is the controller's
            if run is not latest.get(run.plan.job) or not run.is_known(now_s):
                continue
            energy += found
            doubt += doubts
            if is_alone and run.plan.job and (row := self._job_progress(agent, run)) is not None:
                rows.append(row)
            if run.plan.ended_s is not None:
                continue
            for sample in found:
                name = sample.labels["domain"]
                key = (run.plan.run_id, name)
                values[key] = (account.energy_j[name], attribution.total_j(name))
                power.append(
                    MetricSample(sample.labels, self._watts(key, values[key], watts.get(name)))
                )
        for last in self._last_values(now_s, latest):
            energy += last.energy
            doubt += last.doubt
            rows += [] if last.progress is None else [last.progress]
        node = {"node": agent.context.node, "cluster": agent.context.config.cluster}
        unnamed = {"job_id": OTHER, "name": "", "user": "", "project": ""}
        energy += [
            MetricSample({**node, **unnamed, **dict(of_domain)}, others.shown_j())
            for of_domain, others in self._others.items()
        ]
        moved = {k: v for k, v in values.items() if v[1] > self._before.get(k, (0.0, -1.0))[1]}
        open_ids = {run.plan.run_id for run in runs}
        self._counted = {k: v for k, v in self._counted.items() if k[0] in open_ids}
        self._before = {**{k: v for k, v in self._before.items() if k in values}, **moved}
        self._shares = {key: share for key, share in self._shares.items() if key in values}
        self._shown = [*{s.exemplar for s in energy}, *(f"{row.run_id}/steps" for row in rows)]
        with self._lock:
            unscraped = [name for name in self._shown if name not in self._scraped]
        fresh = {name for name in unscraped if name.partition("/")[0] not in self._resumed}
        yield MetricFamily(
            "wattloop_job_energy_joules_total",
            "Energy of a job on this node since it began; add up only in_total.",
            [s._replace(value=0.0) if s.exemplar in fresh else s for s in energy],
            "joules",
        )
        yield MetricFamily(
            "wattloop_job_power_watts", "Power of a job's share now.", power, "watts"
        )
        yield MetricFamily(
            "wattloop_job_energy_uncertainty_joules",
            "Difference that another rule of attribution would make.",
            doubt,
            "joules",
        )
        told += [
            (r.labels, r.provenance, _at_zero(r.told) if f"{r.run_id}/steps" in fresh else r.told)
            for r in rows
        ]

    def _last_values(self, now_s: float, opened: Collection[str]) -> Collection[_EndedJob]:
        """Return the last values of jobs, for a while or until the job is opened again."""
        self._ended = {
            job: last
            for job, last in self._ended.items()
            if last.until_s > now_s and job not in opened
        }
        return self._ended.values()

    def _job_progress(self, agent: Agent, run: OpenRun) -> ProgressRow | None:
        """Return steps and phases of a job's programs; None where they tell nothing."""
        told = {} if self._programs is None else self._programs.told(run.plan.run_id)
        if not told:
            return None
        layout = agent.attribution.layout
        progress = self._progress.get(run.plan.run_id)
        if progress is None:
            begin_s = max(run.plan.started_s, self._began_s)
            progress = self._progress[run.plan.run_id] = JobProgress(begin_s)
        if progress.told is not told or progress.row is None:
            progress.add(told, run, layout.counted)
            counted = [d.provenance for d in run.feed.domains if d.name in layout.counted]
            provenance = Provenance.weakest((Provenance.MODELLED, *counted)).value
            labels = _job_labels(agent, run)
            progress.row = ProgressRow(run.plan.run_id, labels, provenance, progress.total)
        return progress.row

    def _begin(self, runs: list[OpenRun], now_s: float) -> None:
        """Note the runs that an earlier agent may have shown."""
        self._began_s = now_s
        self._past = {run.plan.run_id for run in runs if run.plan.ended_s is not None}
        old = (run.plan for run in runs if run.plan.started_s < now_s - YOUNG_S)
        self._resumed = {plan.run_id for plan in old}

    def _place(self, runs: list[OpenRun]) -> dict[str, bool]:
        """Decide which jobs have series of their own: once, so that joules never change series."""
        opened = sorted((r.plan for r in runs if r.plan.job), key=lambda plan: plan.started_s)
        jobs, before = [plan.run_id for plan in opened], self._alone or {}
        alone = {job: before[job] for job in jobs if job in before}
        free = MOST_JOBS - sum(alone.values())
        new = [job for job in jobs if job not in alone]
        alone |= {job: place < free for place, job in enumerate(new)}
        return alone

    def _watts(
        self, key: tuple[str, str], joules: tuple[float, float], domain_w: float | None
    ) -> float | None:
        """Return the run's part of a domain's power now.

        Joules by the time between two steps would jitter: what a counter gains in a step is known
        from readings at other moments. The part is a ratio of joules of the same readings.
        """
        before = self._before.get(key)
        if before is not None and joules[1] > before[1]:
            self._shares[key] = max(0.0, joules[0] - before[0]) / (joules[1] - before[1])
        share = self._shares.get(key)
        return None if share is None or domain_w is None else share * domain_w

    def _health(
        self, agent: Agent, faults: list[str], waiting: int | None
    ) -> Iterator[MetricFamily]:
        node = {"node": agent.context.node, "cluster": agent.context.config.cluster}
        missing = len(agent.attribution.sensors.missing)
        yield _one(
            "wattloop_agent_info", "Version of the agent.", {**node, "version": __version__}, 1
        )
        figures: Mapping[str, tuple[str, float | None]] = {
            "wattloop_agent_last_step_timestamp_seconds": (
                "Time of the last step.",
                agent.context.clock.wall_s(),
            ),
            "wattloop_agent_jobs": ("Jobs on the node.", len(agent.open_runs.running())),
            "wattloop_agent_faults": ("Faults that the agent reports now.", len(faults)),
            "wattloop_agent_sensors_missing": ("Parts that cannot be read.", missing),
            "wattloop_agent_journals_waiting": ("Journals that wait to be delivered.", waiting),
            "wattloop_agent_cpu_seconds_total": (
                "Processor time of the agent.",
                time.process_time(),
            ),
            "wattloop_agent_metrics_cpu_seconds_total": (
                "Processor time of making these metrics.",
                self._cpu_s,
            ),
        }
        for name, (text, value) in figures.items():
            yield _one(name, text, node, value)


SIGNALS: dict[str, tuple[str, str, str, float]] = {
    "power_limit": ("wattloop_gpu_power_limit_watts", "Power limit, and its job.", "watts", 1.0),
    "utilisation": ("wattloop_gpu_utilization_ratio", "Time with a kernel.", "ratio", 1.0),
    "memory_used": ("wattloop_gpu_memory_used_bytes", "Memory in use.", "bytes", 1.0),
    "temperature": ("wattloop_gpu_temperature_celsius", "Temperature.", "celsius", 1.0),
    "sm_clock": ("wattloop_gpu_sm_clock_hertz", "Clock of the processors.", "hertz", 1e6),
}
"""Signal -> name of the family, help, unit, and its factor from the signal's unit."""


def _device_labels(agent: Agent, name: str) -> Labels:
    domain = agent.attribution.layout.domains[name]
    return {
        "node": agent.context.node,
        "cluster": agent.context.config.cluster,
        "domain": name,
        "scope": domain.scope.value,
        "device": plain(domain.device or ""),
        "source": domain.source,
        "provenance": domain.provenance.value,
        "in_total": str(name in agent.attribution.layout.counted).lower(),
    }


def _domain_labels(domain: Domain, counted: bool) -> Labels:
    return {
        "domain": domain.name,
        "scope": domain.scope.value,
        "provenance": domain.provenance.value,
        "in_total": str(counted).lower(),
    }


def _job_labels(agent: Agent, run: OpenRun) -> Labels:
    plan = run.plan
    return {
        "node": agent.context.node,
        "cluster": agent.context.config.cluster or _plain(plan.facts.get("cluster", "")),
        "job_id": plan.job or IDLE,
        "name": _plain(plan.facts.get("name", "")),
        "user": _plain(plan.user),
        "project": _plain(plan.facts.get("project", "")),
        **{n: _plain(plan.facts[n]) for n in POD_LABELS if n in plan.facts},
    }


def _family(name: str, text: str, unit: str, samples: Any) -> MetricFamily:
    return MetricFamily(name, text, [MetricSample(*sample) for sample in samples], unit)


def _one(name: str, text: str, labels: Labels, value: float | None) -> MetricFamily:
    number = None if value is None else float(value)
    return MetricFamily(name, text, [MetricSample(labels, number)])


def _at_zero(told: RunProgress) -> RunProgress:
    return told._replace(
        steps=0,
        samples=None if told.samples is None else 0.0,
        tokens=None if told.tokens is None else 0.0,
        phases=dict.fromkeys(told.phases, (0.0, 0.0)),
    )
