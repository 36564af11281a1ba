"""Live metrics of a node for Prometheus: power and joules by device, job and user, caps, health."""

from __future__ import annotations

import logging
import os
import re
import stat
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from wattloop.core.process import BackgroundThread
from wattloop.core.records import Domain, Provenance
from wattloop.core.text import plain
from wattloop.measure.meter_stream import domain_sources
from wattloop.measure.metrics_endpoint import progress_families
from wattloop.measure.run_journal import RunProgress
from wattloop.store.formats.prometheus import MetricFamily, MetricSample, render_families
from wattloop.version import __version__

if TYPE_CHECKING:
    from wattloop.fleet.agent.agent import Agent
    from wattloop.fleet.agent.job_shares import Account
    from wattloop.fleet.agent.open_runs import OpenRun, RunPlan

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
_plain = lru_cache(maxsize=4_096)(plain)
"""The same names are shown every second."""
_log = logging.getLogger("wattloop.agent")


class _EndedJob(NamedTuple):
    """The last values of a job that has ended."""

    until_s: float
    energy: list[MetricSample]
    doubt: list[MetricSample]
    progress: _ProgressRow | None


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
        self._progress: dict[str, _JobProgress] = {}
        self._before: dict[tuple[str, str], tuple[float, float]] = {}
        """(run, domain) -> joules of the run and of the domain at the last change."""
        self._shares: dict[tuple[str, str], float] = {}
        self._alone: dict[str, bool] | None = None
        """Run of a job -> whether it has series of its own, for as long as it is open."""
        self._known_j: dict[tuple[str, str], float] = {}
        """(run, domain) -> joules of the run that are in the sums of users and other jobs."""
        self._others: dict[_Series, float] = {}
        """Labels of a domain -> joules of the others, also of those that have ended."""
        self._users: dict[_Series, float] = {}
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
        self._ended: dict[str, _EndedJob] = {}
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
        if alone:
            self._ended[run_id] = _EndedJob(now_s + ENDED_S, energy, doubt, progress)
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
            known_j = self._known_j.get(key, joules if resumed else 0.0)
            self._known_j[key] = max(known_j, joules)
            new_j = max(0.0, joules - known_j)
            if plan.job and counted:
                self._add_user(labels, of_domain, new_j)
            if alone:
                own = {**labels, **of_domain}
                energy.append(MetricSample(own, joules, plan.run_id))
                doubt.append(MetricSample(own, account.doubt_j(domain.name)))
            else:
                series = tuple(of_domain.items())
                self._others[series] = self._others.get(series, 0.0) + new_j
        return energy, doubt

    def _add_user(self, labels: Labels, of_domain: Labels, joules: float) -> None:
        names = {name: labels[name] for name in ("node", "cluster", "user", "project")}
        kind = {name: of_domain[name] for name in ("scope", "provenance")}
        series = tuple({**names, **kind}.items())
        if series not in self._users and len(self._users) >= MOST_USERS:
            series = tuple({**names, "user": OTHER, "project": "", **kind}.items())
        self._users[series] = self._users.get(series, 0.0) + joules

    def _by_user(self) -> Iterator[MetricFamily]:
        yield MetricFamily(
            "wattloop_user_energy_joules_total",
            "Energy of all jobs of a user and project on this node since the agent started.",
            [
                MetricSample(dict(series), joules if series in self._scraped else 0.0)
                for series, joules in self._users.items()
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
        rows: list[_ProgressRow] = []
        values: dict[tuple[str, str], tuple[float, float]] = {}
        runs = agent.open_runs.all()
        resumed = self._alone is None
        if resumed:
            self._began_s = now_s
            old = (run.plan for run in runs if run.plan.started_s < now_s - YOUNG_S)
            self._resumed = {plan.run_id for plan in old}
        self._alone = alone = self._place(runs)
        if self._programs is not None:
            self._programs.follow({run.plan.run_id: run.plan for run in runs if run.plan.job})
        for run in runs:
            account = attribution.account_of(run)
            is_alone = alone.get(run.plan.run_id, True)
            found, doubts = self._count(agent, run, account, is_alone, resumed)
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
                own_w = self._watts(key, values[key], watts.get(name))
                power.append(MetricSample(sample.labels, own_w))
        self._ended = {run: last for run, last in self._ended.items() if last.until_s > now_s}
        for last in self._ended.values():
            energy += last.energy
            doubt += last.doubt
            rows += [] if last.progress is None else [last.progress]
        node = {"node": agent.context.node, "cluster": agent.context.config.cluster}
        unnamed = {"job_id": OTHER, "name": "", "user": "", "project": ""}
        energy += [
            MetricSample({**node, **unnamed, **dict(of_domain)}, joules)
            for of_domain, joules in self._others.items()
        ]
        moved = {k: v for k, v in values.items() if v[1] > self._before.get(k, (0.0, -1.0))[1]}
        open_ids = {run.plan.run_id for run in runs}
        self._known_j = {k: v for k, v in self._known_j.items() if k[0] in open_ids}
        self._before = {**{k: v for k, v in self._before.items() if k in values}, **moved}
        self._shares = {key: share for key, share in self._shares.items() if key in values}
        self._shown = [*alone, *self._ended, *(f"{row.run_id}/steps" for row in rows)]
        with self._lock:
            fresh = {name for name in self._shown if name not in self._scraped}
        fresh = {name for name in fresh if name.partition("/")[0] not in self._resumed}
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

    def _job_progress(self, agent: Agent, run: OpenRun) -> _ProgressRow | None:
        """Return steps and phases of a job's programs; None where they tell nothing."""
        told = {} if self._programs is None else self._programs.told(run.plan.run_id)
        if not told:
            return None
        layout = agent.attribution.layout
        progress = self._progress.get(run.plan.run_id)
        if progress is None:
            begin_s = max(run.plan.started_s, self._began_s)
            progress = self._progress[run.plan.run_id] = _JobProgress(begin_s)
        if progress.told is not told or progress.row is None:
            progress.add(told, run, layout.counted)
            counted = [d.provenance for d in run.feed.domains if d.name in layout.counted]
            provenance = Provenance.weakest((Provenance.MODELLED, *counted)).value
            labels = _job_labels(agent, run)
            progress.row = _ProgressRow(run.plan.run_id, labels, provenance, progress.total)
        return progress.row

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


# Steps and phases of jobs. A program under `wattloop run` has a folder for its steps, which its
# environment names; `wattloop run` replaces a small file there every few seconds.

LOOK_EVERY_S = 5.0
EXAMINED = 3
"""A process without steps in so many looks never has them: it does not become another program."""
FORGET_EVERY = 120
"""All processes are examined again after so many looks: their numbers are used again."""
ENVIRONMENT_B = 65_536
STEPS_VARIABLE = b"WATTLOOP_STEPS"
MOST_PROGRAMS = 64
"""Programs of one job; later ones are left out."""


class _ProgressRow(NamedTuple):
    run_id: str
    labels: Labels
    provenance: str
    told: RunProgress


@dataclass(slots=True)
class _Program:
    """A process with a folder of steps: its job's run, the folder, and the process's user."""

    run_id: str
    folder: str
    uid: int


class JobPrograms(BackgroundThread):
    """Thread that reads what the programs of a node's jobs tell of their steps.

    A process belongs to the job that its control group names, or as the job's user to the job that
    Slurm's variables name. Reading its files takes the rights of its user and to trace it: root
    has them, a container without capabilities has not.

    Args:
        procfs: where processes are.
        node: its name in Slurm.
    """

    def __init__(self, procfs: Path, node: str) -> None:
        super().__init__("wattloop-programs", patience_s=5.0)
        self._procfs, self._node = procfs, node.encode()
        self._plans: Mapping[str, RunPlan] = {}
        self._known: dict[int, _Program | int] = {}
        """Process -> its program, or how often it was examined without finding one."""
        self._looks = 0
        self._told: dict[str, dict[str, RunProgress]] = {}

    def follow(self, plans: Mapping[str, RunPlan]) -> None:
        """Look for the programs of these runs from now on, and forget those of others."""
        self._plans = plans

    def told(self, run_id: str) -> Mapping[str, RunProgress]:
        """Return folder -> progress of the programs of a run, also of those that have ended."""
        return self._told.get(run_id, {})

    def _work(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            try:
                self.look()
            except Exception:  # noqa: BLE001 - jobs are measured on without their steps
                _log.exception("steps of jobs were not read")

    def look(self) -> None:
        """Read all programs once."""
        plans = self._plans
        told = {run: found for run, found in self._told.items() if run in plans}
        read = set[tuple[str, str]]()
        for pid, program in self._programs(plans).items():
            key = (program.run_id, program.folder)
            if key in read:
                continue
            found = told.get(program.run_id, {})
            if program.folder not in found and len(found) >= MOST_PROGRAMS:
                continue
            folder = self._procfs / str(pid) / "root" / program.folder.lstrip("/")
            progress = _own_progress(folder, program.uid)
            if progress is not None:
                read.add(key)
                told[program.run_id] = {**found, program.folder: progress}
        self._told = told

    def _programs(self, plans: Mapping[str, RunPlan]) -> dict[int, _Program]:
        self._looks += 1
        if self._looks % FORGET_EVERY == 0:
            self._known = {}
        names = os.listdir(self._procfs) if plans else []  # noqa: PTH208 - ten times a path's speed
        known: dict[int, _Program | int] = {}
        for pid in sorted(int(name) for name in names if name.isdigit()):
            before = self._known.get(pid, 0)
            settled = before >= EXAMINED if isinstance(before, int) else before.run_id in plans
            known[pid] = before
            if not settled:
                count = before if isinstance(before, int) else 0
                known[pid] = self._examine(pid, plans) or count + 1
        self._known = known
        return {pid: found for pid, found in known.items() if isinstance(found, _Program)}

    def _examine(self, pid: int, plans: Mapping[str, RunPlan]) -> _Program | None:
        place = self._procfs / str(pid)
        try:
            with (place / "environ").open("rb") as file:
                words = file.read(ENVIRONMENT_B).split(b"\0")
            facts = dict(word.split(b"=", 1) for word in words if b"=" in word)
            folder = os.fsdecode(facts.get(STEPS_VARIABLE, b""))
            if not folder.startswith("/"):
                return None
            uid = place.stat().st_uid
            group = (place / "cgroup").read_text("utf-8", "replace")
        except OSError:
            return None
        job = os.fsdecode(facts.get(b"SLURM_JOB_ID", b""))
        if facts.get(b"SLURMD_NODENAME", self._node) != self._node:
            job = ""
        groups = set(re.split(r"[/\n]", group))
        for run_id, plan in plans.items():
            in_group = f"job_{plan.job}" in groups or (len(plan.job) >= 32 and plan.job in group)
            if in_group or (job == plan.job and uid == plan.uid):
                return _Program(run_id, folder, uid)
        return None


def _own_progress(folder: Path, uid: int) -> RunProgress | None:
    """Return the progress in a folder of this user, which no link may stand for."""
    try:
        status = folder.lstat()
    except OSError:  # the program has ended
        return None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != uid:
        return None
    return RunProgress.read(folder, uid)


@dataclass(slots=True)
class _JobProgress:
    """Sums over the programs of a job, which never fall.

    The joules of the job in a time are divided among phases as its programs saw theirs in it: they
    read whole devices, the agent knows the job's part.

    Attributes:
        until_s: up to when joules are divided.
        told: folder -> what was told last, as it was told.
        programs: folder -> the same, without numbers that fell.
        row: what is shown until more is told.
    """

    until_s: float
    told: Mapping[str, RunProgress] = field(default_factory=dict)
    programs: dict[str, RunProgress] = field(default_factory=dict)
    energy_j: dict[str, float] = field(default_factory=dict)
    row: _ProgressRow | None = None

    @property
    def total(self) -> RunProgress:
        told = list(self.programs.values())
        first = [one for one in told if one.local_rank == 0]
        steps_s = [one.last_step_s for one in told if one.last_step_s is not None]
        return RunProgress(
            steps=sum(one.steps for one in first),
            samples=_sum([one.samples for one in told]),
            tokens=_sum([one.tokens for one in first]),
            last_step_s=max(steps_s, default=None),
            phases={
                name: (
                    sum(one.phases[name][0] for one in first if name in one.phases),
                    self.energy_j.get(name, 0.0),
                )
                for name in {name: None for one in first for name in one.phases}
            },
        )

    def add(self, told: Mapping[str, RunProgress], run: OpenRun, counted: frozenset[str]) -> None:
        """Add what the programs of the job have told since the last call."""
        self.told = told
        new_s: dict[str, float] = {}
        new_j: dict[str, float | None] = {}
        until_s = self.until_s
        for folder, progress in told.items():
            before = self.programs.get(folder)
            if progress == before:
                continue
            now = self.programs[folder] = progress if before is None else _largest(before, progress)
            if now.local_rank:
                continue
            until_s = max(until_s, now.until_s)
            for name, (time_s, joules) in now.phases.items():
                old_s, old_j = (0.0, 0.0) if before is None else before.phases.get(name, (0.0, 0.0))
                new_s[name] = new_s.get(name, 0.0) + time_s - old_s
                known_j = new_j.get(name, 0.0)
                unknown = known_j is None or joules is None or old_j is None
                new_j[name] = None if unknown else known_j + joules - old_j  # type: ignore[operator]  # all are numbers
        lasted_s = sum(new_s.values())
        if until_s <= self.until_s or lasted_s <= 0:
            return
        weights = {n: j or 0.0 for n, j in new_j.items()} if None not in new_j.values() else new_s
        whole = sum(weights.values())
        weights, whole = (weights, whole) if whole > 0 else (new_s, lasted_s)
        spent_j = _energy_j(run, counted, max(self.until_s, until_s - lasted_s), until_s)
        for name, weight in weights.items():
            self.energy_j[name] = self.energy_j.get(name, 0.0) + spent_j * weight / whole
        self.until_s = until_s


def _largest(before: RunProgress, now: RunProgress) -> RunProgress:
    """Return what a program tells now, without a number that falls: a counter never does."""
    phases = dict(now.phases)
    for name, (time_s, joules) in before.phases.items():
        later_s, later_j = phases.get(name, (time_s, joules))
        known = joules is not None and later_j is not None
        phases[name] = (max(time_s, later_s), max(joules, later_j) if known else None)  # type: ignore[type-var]  # both are numbers
    return now._replace(
        steps=max(before.steps, now.steps),
        samples=max(before.samples or 0.0, now.samples or 0.0) or None,
        tokens=max(before.tokens or 0.0, now.tokens or 0.0) or None,
        phases=phases,
    )


def _at_zero(told: RunProgress) -> RunProgress:
    return told._replace(
        steps=0,
        samples=None if told.samples is None else 0.0,
        tokens=None if told.tokens is None else 0.0,
        phases=dict.fromkeys(told.phases, (0.0, 0.0)),
    )


def _energy_j(run: OpenRun, counted: frozenset[str], begin_s: float, end_s: float) -> float:
    """Return the joules of a job between two instants."""
    spans = [
        source.between(begin_s, end_s)
        for source in domain_sources([run.feed])
        if source.domain.name in counted
    ]
    return max(0.0, sum(span.energy_j for span in spans if span is not None))


def _sum(amounts: Sequence[float | None]) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None
