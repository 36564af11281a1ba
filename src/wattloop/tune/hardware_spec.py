"""The hardware section of a search: power cap, clocks, number of GPUs, any other lever."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from wattloop.characterize.cap_finder import FINDER_METRICS
from wattloop.characterize.quantities import Values, expanded
from wattloop.hardware.lined_yaml import nearest
from wattloop.tune.amounts import seconds
from wattloop.tune.parameter_spec import Strict
from wattloop.tune.parameters import Choice, Parameter
from wattloop.tune.segment import CAP_LEVER, CapSearch, Value

__all__ = ["CapSpec", "HardwareSpec"]

LEVERS = {
    CAP_LEVER: "gpu/power_limit",
    "sm_clock": "gpu/sm_clock",
    "memory_clock": "gpu/memory_clock",
}
AUTO = "auto"

Levels = Annotated[Values, BeforeValidator(expanded)]


class CapSpec(Strict):
    """A cap that is searched inside the trainings.

    `auto` may list the caps in watts that are allowed; by itself it is what the device offers.
    """

    auto: Literal[True] | list[Annotated[float, Field(gt=0)]] = True
    metric: str | None = None
    k: Annotated[float, Field(gt=1)] = 2.0
    longest_s: Annotated[float | None, Field(gt=0, alias="longest")] = None

    @field_validator("auto", mode="before")
    @classmethod
    def _watts(cls, value: Any) -> Any:
        if value is True or value == AUTO:
            return True
        caps = expanded(value)
        if any(isinstance(cap, str) for cap in caps):
            raise ValueError("write caps in watts, or list shares as values to try each of them")
        if len(caps) < 2:
            raise ValueError("give at least two caps to choose among")
        return caps

    @field_validator("longest_s", mode="before")
    @classmethod
    def _seconds(cls, value: Any) -> Any:
        return seconds(value)

    @field_validator("metric")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        if value is not None and value not in FINDER_METRICS:
            raise ValueError(f"unknown metric '{value}'; {nearest(value, FINDER_METRICS)}")
        return value

    def search(self, metric: str, k: float) -> CapSearch:
        """How to look for it; `metric` and `k` are those of the objective."""
        own = self.metric is not None
        return CapSearch(
            metric=self.metric or metric,
            k=self.k if own or "k" in self.model_fields_set else k,
            caps_w=() if self.auto is True else tuple(self.auto),
            longest_s=self.longest_s,
        )


class HardwareSpec(Strict):
    """What may be chosen of the machine. Nothing named is nothing touched.

    With `combine: each` one thing is varied at a time: while it has another value than the first
    of its list, the others are left as the machine has them.
    """

    combine: Literal["grid", "each"] = "grid"
    power_limit: CapSpec | Levels | None = None
    sm_clock: Levels | None = None
    memory_clock: Levels | None = None
    gpus: list[Annotated[int, Field(ge=1, le=1024)]] | None = None
    levers: dict[str, Levels] = Field(default_factory=dict)

    @field_validator("power_limit", mode="before")
    @classmethod
    def _auto(cls, value: Any) -> Any:
        if isinstance(value, CapSpec) or value is None:
            return value
        if value == AUTO:
            return CapSpec()
        if isinstance(value, Mapping) and "from" not in value:
            return CapSpec.model_validate(value)
        return expanded(value)

    @field_validator("gpus", mode="before")
    @classmethod
    def _counts(cls, value: Any) -> Any:
        return [value] if isinstance(value, int) and not isinstance(value, bool) else value

    @model_validator(mode="after")
    def _whole_lists(self) -> "HardwareSpec":
        for name, values in self._listed():
            if not values:
                raise ValueError(f"{name}: no value; give at least one")
            if len(set(values)) < len(values):
                raise ValueError(f"{name}: {values}: one is given twice")
        for name in self.levers:
            if "/" not in name:
                raise ValueError(f"levers: '{name}' is no lever; write it as cpu/governor")
        return self

    @property
    def cap(self) -> CapSpec | None:
        """The cap that is searched inside trainings; None when there is none or it is listed."""
        return self.power_limit if isinstance(self.power_limit, CapSpec) else None

    def parameters(self) -> dict[str, Parameter]:
        """What a space has of it, by name."""
        found: dict[str, Parameter] = {}
        firsts: dict[str, tuple[Value, ...]] = {}
        for name, values in self._listed():
            # a chain of conditions makes 1 + sum(n - 1) configurations of lists of n values
            when = dict(firsts) if self.combine == "each" else {}
            found[name] = Choice(values=tuple(values), lever=LEVERS.get(name, name), when=when)
            firsts[name] = (values[0],)
        return found

    def _listed(self) -> Iterator[tuple[str, list[Any]]]:
        for name in LEVERS:
            values = getattr(self, name)
            if isinstance(values, list):
                yield name, values
        if self.gpus is not None:
            yield "gpus", self.gpus
        yield from self.levers.items()
