"""Schema of a scenario file."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from wattloop.schedule.cluster.file import FailuresSpec
from wattloop.schedule.engine.settings import Keeps, Preemption
from wattloop.schedule.estimates.spec import OracleSpec
from wattloop.schedule.jobs.spec import JobsSpec
from wattloop.schedule.policies.registry import split_policies
from wattloop.schedule.yaml_model import (
    NameOrFields,
    PositiveSeconds,
    Seconds,
    Share,
    StrictModel,
    seconds,
)

MOST_SEEDS = 100_000


class PreemptionSpec(StrictModel):
    """Progress that a stopped job keeps, and the cost of stopping."""

    keeps: Literal["iterations", "nothing", "checkpoints"] = "iterations"
    period_s: Annotated[PositiveSeconds | None, Field(alias="period")] = None
    cost_s: Annotated[Seconds, Field(alias="cost")] = 0.0
    restart_s: Annotated[Seconds, Field(alias="restart")] = 0.0
    resize_s: Annotated[Seconds | None, Field(alias="resize")] = None

    @model_validator(mode="before")
    @classmethod
    def _one_word(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"keeps": value}
        if not isinstance(value, Mapping):
            raise ValueError("write iterations, nothing or checkpoints, or 'keeps' with costs")
        return value

    @model_validator(mode="after")
    def _period_of_checkpoints(self) -> "PreemptionSpec":
        if self.keeps == "checkpoints" and self.period_s is None:
            raise ValueError("how often are checkpoints written? Give a period such as 10 min")
        if self.keeps != "checkpoints" and (self.period_s is not None or self.cost_s):
            raise ValueError("period and cost are of checkpoints; write keeps: checkpoints")
        return self

    def preemption(self) -> Preemption:
        return Preemption(
            keeps=Keeps(self.keeps),
            checkpoint_period_s=float("inf") if self.period_s is None else self.period_s,
            checkpoint_cost_s=self.cost_s,
            restart_s=self.restart_s,
            resize_s=self.resize_s,
        )


def _rounds(value: Any) -> Any:
    return None if value == "events" else seconds(value)


def _horizon(value: Any) -> Any:
    return None if value == "none" else seconds(value)


class EngineSpec(StrictModel):
    """Settings of the simulation engine."""

    rounds_s: Annotated[PositiveSeconds | None, BeforeValidator(_rounds), Field(alias="rounds")] = (
        None
    )
    horizon_s: Annotated[
        PositiveSeconds | None, BeforeValidator(_horizon), Field(alias="horizon")
    ] = None
    preemption: PreemptionSpec = PreemptionSpec()
    start_latency_s: Annotated[Seconds, Field(alias="start_latency")] = 0.0
    end_latency_s: Annotated[Seconds, Field(alias="end_latency")] = 0.0
    interference: Share = 0.0
    failures: FailuresSpec | None = None


class ScenarioSpec(StrictModel):
    """Scenario. `step_function` reads the values over the day: budget, price, carbon."""

    name: str = ""
    description: str = ""
    cluster: NameOrFields
    jobs: JobsSpec
    oracle: OracleSpec = OracleSpec()
    engine: EngineSpec = EngineSpec()
    starts_at: Any = None
    budget: Any = None
    price: Any = None
    carbon: Any = None
    policies: list[NameOrFields] = Field(default_factory=list)
    seeds: list[Annotated[int, Field(ge=0)]] = Field(default_factory=lambda: list(range(10)))
    variants: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @field_validator("policies", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        if isinstance(value, str):
            return split_policies(value)
        if not isinstance(value, list):
            raise ValueError(f"write names such as [fifo, zeus], not {value!r}")
        return value

    @field_validator("seeds", mode="before")
    @classmethod
    def _how_many(cls, value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            if not 1 <= value <= MOST_SEEDS:
                raise ValueError(f"write how many, 1 to {MOST_SEEDS:,}, or a list; not {value}")
            return list(range(value))
        if not isinstance(value, list):
            raise ValueError(f"write how many, such as 10, or a list; not {value!r}")
        return value

    @field_validator("seeds")
    @classmethod
    def _distinct(cls, value: list[int]) -> list[int]:
        if not value:
            raise ValueError("no seed; one is the least")
        if len(set(value)) < len(value):
            raise ValueError("a seed is given twice; it would count twice")
        return value
