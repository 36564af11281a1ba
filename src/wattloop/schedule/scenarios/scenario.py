"""Validated scenario, and the simulation that it draws for each seed."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.core.units import format_duration
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.engine.settings import EngineSettings, NodeEvent
from wattloop.schedule.estimates.oracle import Oracle
from wattloop.schedule.estimates.spec import OracleSpec
from wattloop.schedule.jobs.spec import JobsSpec
from wattloop.schedule.jobs.table import JobTable
from wattloop.schedule.scenarios.spec import EngineSpec
from wattloop.schedule.step_function import SourcedSteps, StepFunction


class World(NamedTuple):
    """Inputs of a simulation except the policy; `oracle` has the policies' estimates."""

    cluster: Cluster
    jobs: JobTable
    truth: Oracle
    oracle: Oracle
    settings: EngineSettings


@dataclass(frozen=True)
class Scenario:
    """Machines, jobs and rules of a campaign, with default policies and seeds.

    Attributes:
        oracle: source of time and power, and their noise.
        budget: power budget of the whole cluster, over time; None without one.
        starts_at_s: time of the day at which the simulation starts.
        policies: as written: names, or names with parameters.
        variants: name -> the same scenario with something changed.
    """

    name: str
    description: str
    cluster: Cluster
    jobs: JobsSpec
    oracle: OracleSpec = field(default_factory=OracleSpec)
    engine: EngineSpec = field(default_factory=EngineSpec)
    budget: SourcedSteps | None = None
    price: SourcedSteps | None = None
    carbon: SourcedSteps | None = None
    starts_at_s: float = 0.0
    policies: tuple[str | Mapping[str, Any], ...] = ()
    seeds: tuple[int, ...] = tuple(range(10))
    variants: Mapping[str, "Scenario"] = field(default_factory=dict)

    def __post_init__(self) -> None:
        fault = budget_fault(self.budget, self.cluster)
        if fault:
            raise ConfigError(f"scenario {self.name}: budget: {fault}")

    def world(self, seed: int) -> World:
        """Build the inputs of one seed."""
        truth = self.truth
        return World(
            cluster=self.cluster,
            jobs=self._noted(self.jobs.table(seed, self.cluster, truth)),
            truth=truth,
            oracle=self.oracle.seen(truth, seed),
            settings=self.settings(seed),
        )

    @cached_property
    def truth(self) -> Oracle:
        """Oracle of true time and power, built once for all seeds."""
        return self.oracle.truth(self.cluster)

    def settings(self, seed: int) -> EngineSettings:
        engine, failures = self.engine, self.cluster.failures
        horizon_s = math.inf if engine.horizon_s is None else engine.horizon_s
        events: tuple[NodeEvent, ...] = ()
        if failures is not None:
            try:
                events = failures.events(len(self.cluster.node_groups), horizon_s, seed)
            except ValueError as error:
                raise ConfigError(f"scenario {self.name}: {error}") from None
        return EngineSettings(
            round_s=engine.rounds_s,
            horizon_s=horizon_s,
            preemption=engine.preemption.preemption(),
            start_latency_s=engine.start_latency_s,
            end_latency_s=engine.end_latency_s,
            interference=engine.interference,
            budget_w=self._seen(self.budget) or StepFunction.constant(math.inf),
            carbon_g_per_kwh=self._seen(self.carbon),
            price_per_kwh=self._seen(self.price),
            node_events=events,
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "description": self.description,
            "cluster": asdict(self.cluster),
            "jobs": self.jobs.model_dump(mode="json", by_alias=True),
            "oracle": self.oracle.model_dump(mode="json", by_alias=True),
            "engine": self.engine.model_dump(mode="json", by_alias=True),
            **{name: _plain(getattr(self, name)) for name in ("budget", "price", "carbon")},
            "starts_at_s": self.starts_at_s,
            "policies": list(self.policies),
            "seeds": list(self.seeds),
        }

    def digest(self) -> str:
        """Hash all inputs of a simulation except policy, seed and code, including files.

        Names, descriptions, sources and default policies and seeds are not included.
        """
        said = self.to_dict()
        for key in ("name", "description", "policies", "seeds"):
            del said[key]
        for key in ("name", "sources"):
            del said["cluster"][key]
        files = {*self.oracle.files(), *_trace_files(self.jobs)}
        said["files"] = sorted(hashlib.sha256(_content(path)).hexdigest() for path in files)
        text = json.dumps(said, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def _noted(self, jobs: JobTable) -> JobTable:
        horizon_s = self.engine.horizon_s
        late = 0 if horizon_s is None else int((jobs.arrival_s >= horizon_s).sum())
        if not late or horizon_s is None:
            return jobs
        note = (
            f"{late} of {len(jobs)} jobs come after the horizon of {format_duration(horizon_s)} "
            "and are not simulated; --horizon none simulates all"
        )
        return replace(jobs, notes=(*jobs.notes, note))

    def _seen(self, written: SourcedSteps | None) -> StepFunction | None:
        return None if written is None else written.steps.shifted(self.starts_at_s)


def budget_fault(budget: SourcedSteps | None, cluster: Cluster) -> str:
    """Return the fault of a budget below the cluster's idle power; empty without one."""
    if budget is None:
        return ""
    least_w, idle_w = min(budget.steps.values), cluster.idle_w
    if least_w >= idle_w:
        return ""
    return (
        f"{least_w:g} W is below the {idle_w:g} W that cluster {cluster.name} draws with nothing "
        "to do: no job could ever run; raise it, or take nodes away"
    )


def _plain(written: SourcedSteps | None) -> dict[str, Any] | None:
    return None if written is None else {**asdict(written.steps), "source": written.source}


def _trace_files(jobs: JobsSpec) -> list[Path]:
    if jobs.trace is None:
        return []
    form = jobs.trace.format
    own_form = [form] if form.endswith((".yaml", ".yml")) else []
    return [user_path(file) for file in (jobs.trace.file, *own_form)]


def _content(path: Path) -> bytes:
    try:
        if path.is_dir():
            inside = sorted(each for each in path.iterdir() if each.is_file())
            return b"\0".join(each.read_bytes() for each in inside)
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None


def stored_scenario(kept: Mapping[str, Any]) -> Scenario:
    """Invert `Scenario.to_dict`, without default policies and seeds.

    Raises:
        ConfigError: stored by a release whose scenarios had other fields.
    """
    try:
        return Scenario(
            name=str(kept["name"]),
            description=str(kept["description"]),
            cluster=TypeAdapter(Cluster).validate_python(kept["cluster"]),
            jobs=JobsSpec.model_validate(kept["jobs"]),
            oracle=OracleSpec.model_validate(kept["oracle"]),
            engine=EngineSpec.model_validate(kept["engine"]),
            budget=_written(kept.get("budget")),
            price=_written(kept.get("price")),
            carbon=_written(kept.get("carbon")),
            starts_at_s=float(kept.get("starts_at_s") or 0.0),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"this scenario was kept by another release and cannot be simulated again: {error}"
        ) from None


def _written(kept: Mapping[str, Any] | None) -> SourcedSteps | None:
    if kept is None:
        return None
    period_s = kept.get("period_s")
    steps = StepFunction(
        tuple(kept["times_s"]),
        tuple(kept["values"]),
        math.inf if period_s is None else float(period_s),
    )
    return SourcedSteps(steps, str(kept.get("source") or ""))
