"""Live metrics of a node for Prometheus: power and joules by device and job, caps, health."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from wattloop.core.text import plain
from wattloop.store.formats.prometheus import MetricFamily, MetricSample, render_families
from wattloop.version import __version__

if TYPE_CHECKING:
    from wattloop.fleet.agent.agent import Agent
    from wattloop.fleet.agent.open_runs import OpenRun

MOST_JOBS = 256
"""Jobs that begin beyond it are added up as `job_id="other"`: the number of series is bounded."""
POD_LABELS = ("namespace", "pod", "container", "owner_kind", "owner")
OTHER, IDLE = "other", "unallocated"
Labels = dict[str, str]


class AgentMetrics:
    """Families of the node after its last step; a scrape only renders them.

    Joules count from the start of the agent (devices) or of the job. A restarted agent starts the
    counters of devices and of the other jobs at zero, which Prometheus takes for a reset; those of
    jobs continue.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._families: list[MetricFamily] = []
        self._before: dict[tuple[str, str], tuple[float, float]] = {}
        """(run, domain) -> joules of the run and of the domain at the last change."""
        self._shares: dict[tuple[str, str], float] = {}
        self._alone: dict[str, bool] | None = None
        """Run of a job -> whether it has series of its own, for as long as it is open."""
        self._other_runs: dict[tuple[str, str], float] = {}
        """(run, domain) -> joules of the run that are in those of the others."""
        self._others: dict[tuple[tuple[str, str], ...], float] = {}
        """Labels of a domain -> joules of the others, also of those that have ended."""
        self._cpu_s = 0.0

    def families(self) -> list[MetricFamily]:
        with self._lock:
            return self._families

    def render(self, openmetrics: bool) -> str:
        return render_families(self.families(), openmetrics=openmetrics)

    def update(self, agent: Agent, faults: list[str], waiting: int | None = None) -> None:
        """Take the values of a step. Called in the agent's thread."""
        begun_s = time.thread_time()
        watts = agent.attribution.sensors.power_w()
        families = [
            *self._devices(agent, watts),
            *self._jobs(agent, watts),
            *self._health(agent, faults, waiting),
        ]
        with self._lock:
            self._families = families
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

    def _jobs(self, agent: Agent, watts: Mapping[str, float]) -> Iterator[MetricFamily]:
        attribution = agent.attribution
        energy: list[MetricSample] = []
        power: list[MetricSample] = []
        doubt: list[MetricSample] = []
        values: dict[tuple[str, str], tuple[float, float]] = {}
        runs = [run for run in agent.open_runs.all() if run.plan.ended_s is None]
        resumed = self._alone is None
        self._alone = alone = self._place(runs)
        for run in runs:
            account = attribution.account_of(run)
            for domain in run.feed.domains:
                name = domain.name
                joules = account.energy_j.get(name)
                if joules is None:
                    continue
                of_domain = {
                    "domain": name,
                    "scope": domain.scope.value,
                    "provenance": domain.provenance.value,
                    "in_total": str(name in attribution.layout.counted).lower(),
                }
                if not alone.get(run.plan.run_id, True):
                    self._add_other(run.plan.run_id, of_domain, joules, resumed)
                    continue
                labels = {**_job_labels(agent, run), **of_domain}
                key = (run.plan.run_id, name)
                values[key] = (joules, attribution.total_j(name))
                energy.append(MetricSample(labels, joules, run.plan.run_id))
                power.append(MetricSample(labels, self._watts(key, values[key], watts.get(name))))
                doubt.append(MetricSample(labels, account.doubt_j(name)))
        node = {"node": agent.context.node, "cluster": agent.context.config.cluster}
        unnamed = {"job_id": OTHER, "name": "", "user": "", "project": ""}
        energy += [
            MetricSample({**node, **unnamed, **dict(of_domain)}, joules)
            for of_domain, joules in self._others.items()
        ]
        moved = {k: v for k, v in values.items() if v[1] > self._before.get(k, (0.0, -1.0))[1]}
        self._before = {**{k: v for k, v in self._before.items() if k in values}, **moved}
        self._shares = {key: share for key, share in self._shares.items() if key in values}
        yield MetricFamily(
            "wattloop_job_energy_joules_total",
            "Energy of a job on this node since it began; add up only in_total.",
            energy,
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

    def _place(self, runs: list[OpenRun]) -> dict[str, bool]:
        """Decide which jobs have series of their own: once, so that joules never change series."""
        opened = sorted((r.plan for r in runs if r.plan.job), key=lambda plan: plan.started_s)
        jobs, before = [plan.run_id for plan in opened], self._alone or {}
        alone = {job: before[job] for job in jobs if job in before}
        free = MOST_JOBS - sum(alone.values())
        new = [job for job in jobs if job not in alone]
        alone |= {job: place < free for place, job in enumerate(new)}
        self._other_runs = {k: v for k, v in self._other_runs.items() if k[0] in alone}
        return alone

    def _add_other(self, run: str, of_domain: Labels, joules: float, resumed: bool) -> None:
        """Add what a run without series of its own used; `resumed`: before this agent began."""
        key = (run, of_domain["domain"])
        known = self._other_runs.get(key, joules if resumed else 0.0)
        self._other_runs[key] = max(known, joules)
        series = tuple(of_domain.items())
        self._others[series] = self._others.get(series, 0.0) + max(0.0, joules - known)

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


def _job_labels(agent: Agent, run: OpenRun) -> Labels:
    plan = run.plan
    return {
        "node": agent.context.node,
        "cluster": agent.context.config.cluster or plain(plan.facts.get("cluster", "")),
        "job_id": plan.job or IDLE,
        "name": plain(plan.facts.get("name", "")),
        "user": plain(plan.user),
        "project": plain(plan.facts.get("project", "")),
        **{n: plain(plan.facts[n]) for n in POD_LABELS if n in plan.facts},
    }


def _family(name: str, text: str, unit: str, samples: Any) -> MetricFamily:
    return MetricFamily(name, text, [MetricSample(*sample) for sample in samples], unit)


def _one(name: str, text: str, labels: Labels, value: float | None) -> MetricFamily:
    number = None if value is None else float(value)
    return MetricFamily(name, text, [MetricSample(labels, number)])
