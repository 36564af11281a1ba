"""What a scenario file says of the models that its jobs train."""

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from wattloop.schedule.amounts import Strict, number, seconds
from wattloop.schedule.jobs.kind import JobKind
from wattloop.schedule.jobs.template import JobTemplate

__all__ = ["ModelSpec", "WorkSpec"]


def _bound(value: Any) -> Any:
    """A number, a time, or nothing: no bound (as JSON writes infinity)."""
    return math.inf if value is None else seconds(value)


Most = Annotated[int, Field(ge=1, le=1_000_000, strict=True)]
# 70% and 0.7 are the same cap, whatever the last bit says
Cap = Annotated[
    float, BeforeValidator(number), Field(gt=0, le=1), AfterValidator(lambda share: round(share, 6))
]
Positive = Annotated[float, Field(gt=0)]
Bound = Annotated[float, Field(ge=0, allow_inf_nan=True), BeforeValidator(_bound)]
Bounds = Annotated[list[Bound], Field(min_length=2, max_length=2)]


class WorkSpec(Strict):
    """Samples to train on: `samples`, times `epochs`, or anything from `least` to `most`."""

    samples: Positive | None = None
    epochs: Positive = 1.0
    least: Positive | None = None
    most: Positive | None = None

    @model_validator(mode="before")
    @classmethod
    def _plain_number(cls, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float | str | Mapping):
            raise ValueError("write samples, or samples and epochs, or least and most")
        return value if isinstance(value, Mapping) else {"samples": value}

    @model_validator(mode="after")
    def _one_way(self) -> "WorkSpec":
        ranged = self.least is not None and self.most is not None
        if ranged == (self.samples is not None) or (self.least is None) != (self.most is None):
            raise ValueError("write samples (and epochs), or least and most")
        if ranged and (self.least or 0) > (self.most or 0):
            raise ValueError(f"least is {self.least:g}, above most, which is {self.most:g}")
        return self

    def bounds(self) -> tuple[float, float]:
        """Least and most samples."""
        if self.samples is not None:
            return self.samples * self.epochs, self.samples * self.epochs
        return (self.least or math.nan) * self.epochs, (self.most or math.nan) * self.epochs


class ModelSpec(Strict):
    """One model. `work` is for generated jobs; the last three are for traces.

    `when_gpus` and `when_duration` bound the jobs that may be this model (from, to); `called` are
    names under which traces know it.
    """

    model: Annotated[str, Field(min_length=1)]
    precision: str = ""
    gpus: Annotated[list[Most], Field(min_length=1)] = Field(default_factory=lambda: [1])
    batches: Annotated[list[Most], Field(min_length=1)] = Field(default_factory=lambda: [1])
    caps: Annotated[list[Cap], Field(min_length=1)] = Field(default_factory=lambda: [1.0])
    types: list[str] = Field(default_factory=list)
    sequence: Most | None = None
    spread: bool = False
    weight: Positive = 1.0
    work: WorkSpec | None = None
    when_gpus: Bounds | None = None
    called: list[str] = Field(default_factory=list)
    when_duration: Bounds | None = None

    @model_validator(mode="before")
    @classmethod
    def _plain_name(cls, value: Any) -> Any:
        return {"model": value} if isinstance(value, str) else value

    @field_validator("gpus", "batches", "caps", "types", "called", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return value if isinstance(value, list) else [value]

    @field_validator("when_gpus", "when_duration")
    @classmethod
    def _in_order(cls, value: list[float] | None) -> list[float] | None:
        if value is not None and value[0] > value[1]:
            raise ValueError(f"write from and to, in this order, not {value[0]:g} and {value[1]:g}")
        return value

    def template(self) -> JobTemplate:
        """As generators and completion use it."""
        kind = JobKind(
            model=self.model,
            precision=self.precision,
            gpus=tuple(sorted(set(self.gpus))),
            batches=tuple(sorted(set(self.batches))),
            caps=tuple(sorted(set(self.caps))),
            types=tuple(self.types),
            sequence=self.sequence,
            may_spread=self.spread,
        )
        least, most = self.work.bounds() if self.work is not None else (math.nan, math.nan)
        gpus, lasting = self.when_gpus or (0.0, math.inf), self.when_duration or (0.0, math.inf)
        return JobTemplate(
            kind=kind,
            least_work=least,
            most_work=most,
            weight=self.weight,
            trace_gpus=(gpus[0], gpus[1]),
            trace_s=(lasting[0], lasting[1]),
            called=tuple(self.called),
        )
