"""`study.yaml`: a need, its KPIs and goals, and their sources."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from wattloop.core.errors import ConfigError
from wattloop.core.yaml_spec import format_errors, read_yaml, validation_errors
from wattloop.study.goals import Goal

LESS_IS_BETTER = {
    **dict.fromkeys(
        ("energy_kwh", "energy_j", "idle_kwh", "wasted_kwh", "energy_per_job_kwh"), True
    ),
    **dict.fromkeys(("jct_mean_s", "jct_p95_s", "queue_mean_s", "makespan_s", "time_s"), True),
    **dict.fromkeys(("miss_rate", "peak_power_w", "over_budget_s", "carbon_kg", "cost"), True),
    **dict.fromkeys(("preemptions", "power_w", "carbon_g", "edp_kwh_h", "edp_js"), True),
    **dict.fromkeys(("throughput_per_h", "jobs_done", "jain_jct", "jain_share"), False),
}
"""KPI -> which way is better. Those of campaigns, and of runs (energy_j, time_s, power_w, ...)."""
Objective = Literal["energy and performance", "fairness", "deadlines", "power budget"]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class KpiSpec(_Part):
    """A figure and its goal."""

    metric: str
    goal: str

    @field_validator("metric")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in LESS_IS_BETTER:
            raise ValueError(f"unknown figure {value!r}; known are {', '.join(LESS_IS_BETTER)}")
        return value

    @field_validator("goal")
    @classmethod
    def _readable(cls, value: str) -> str:
        try:
            Goal.parse(value, less_is_better=True)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return value

    def parsed(self) -> Goal:
        return Goal.parse(self.goal, less_is_better=LESS_IS_BETTER[self.metric])


class Source(_Part):
    """Source of KPI values: a simulation, or measured runs by name or tag."""

    scenario: str | None = None
    policy: str | None = None
    seeds: str | int = 10
    runs: str | None = Field(None, description="Name of measured runs; * is any text.")
    tag: str | None = Field(None, description="KEY=VALUE of measured runs.")

    @property
    def is_measured(self) -> bool:
        return self.runs is not None or self.tag is not None


class Characterization(_Part):
    """Sweeps that tell what levers do."""

    sweeps: tuple[str, ...] = ()


class StudySpec(_Part):
    """A study."""

    name: str
    need: str
    objective: Objective = "energy and performance"
    kpis: tuple[KpiSpec, ...] = Field(min_length=1)
    baseline: Source
    twin: Source | None = None
    characterize: Characterization = Characterization()
    candidates: tuple[str, ...] = ()
    validation: Source | None = None
    tolerance: float = Field(0.1, gt=0, lt=1, description="How far the twin may be off.")


def read_study(path: str | Path) -> StudySpec:
    """The study of a YAML file.

    Raises:
        ConfigError: `FILE:LINE: field: what is wrong`, one line per fault.
    """
    source = read_yaml(str(path))
    if not source.data:
        raise ConfigError(f"{path}: is empty; begin with: wattloop study init {path}")
    try:
        spec = StudySpec.model_validate(source.data)
    except ValidationError as error:
        raise ConfigError(
            format_errors(validation_errors(error, StudySpec), source, otherwise=str(path))
        ) from None
    base = spec.baseline
    if not base.is_measured and (base.scenario is None or base.policy is None):
        raise ConfigError(
            f"{source.where(('baseline',))}: baseline: name 'runs' or 'tag' of measured runs, or "
            "'scenario' and 'policy' to simulate"
        )
    if base.is_measured and spec.candidates and spec.twin is None:
        raise ConfigError(
            f"{source.where(('candidates',))}: candidates: a measured baseline needs a 'twin' "
            "(scenario and policy) to simulate them on"
        )
    return spec


EXAMPLE = """\
# A study: six steps from a need to a proven saving. `wattloop study status` tells the next one.
name: greener-cluster
need: Cut the electricity bill of the cluster without making users wait.
objective: energy and performance   # or: fairness, deadlines, power budget
kpis:
  - {metric: energy_kwh, goal: "-5%"}
  - {metric: throughput_per_h, goal: no worse than 1 sd}
baseline:                           # or `runs: train*` / `tag: cluster=a` for measured runs
  scenario: thesis-pareto
  policy: pollux
  seeds: 10
characterize:
  sweeps: []                        # identifiers or names of sweeps in the store
candidates: [zeus, hades, chronos, helios]
validation:                         # other seeds than the baseline's, or measured runs
  scenario: thesis-pareto
  seeds: 100..109
"""
