"""One parameter as people write it, in the shape of W&B sweeps and ours beside it."""

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from wattloop.core.errors import ConfigError
from wattloop.hardware.lined_yaml import nearest
from wattloop.tune.amounts import number, plain
from wattloop.tune.parameters import Choice, Fixed, Integer, Linked, Parameter, Real
from wattloop.tune.segment import Value

__all__ = ["DISTRIBUTIONS", "ParameterSpec", "Strict"]

DISTRIBUTIONS: Mapping[str, str] = {
    "constant": "one value",
    "categorical": "one of `values`",
    "int_uniform": "whole numbers from min to max",
    "uniform": "numbers from min to max",
    "q_uniform": "numbers from min to max in steps of q",
    "log_uniform_values": "numbers from min to max, evenly on a logarithmic scale",
    "q_log_uniform_values": "the same in steps of q",
    "log_uniform": "the same, with the natural logarithms of min and max given",
    "q_log_uniform": "the same in steps of q",
}
UNBOUNDED = ("normal", "q_normal", "log_normal", "q_log_normal")
ELSEWHERE = {
    "probabilities": "every value is equally likely here; repeat nothing, leave them out",
    "parameters": "nested parameters are not understood; write them flat and give them `when`",
    "mu": "a parameter needs bounds; give min and max",
    "sigma": "a parameter needs bounds; give min and max",
}
"""Fields of W&B that mean something we do not do -> what to write."""

Scalar = Annotated[Value, BeforeValidator(number)]


class Strict(BaseModel):
    """Unknown fields are errors; aliases are what people write."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class ParameterSpec(Strict):
    """What a parameter may be: `values`, `value`, `min` and `max`, or `same_as`."""

    values: list[Scalar] | None = None
    value: Scalar = None
    min: int | float | None = None
    max: int | float | None = None
    distribution: str | None = None
    q: int | float | None = None
    log: bool = False
    same_as: str | None = None
    when: dict[str, list[Scalar]] = Field(default_factory=dict)
    lever: str = ""

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        if isinstance(value, Parameter):
            return _written(value)
        if isinstance(value, list | tuple):
            return {"values": list(value)}
        if not isinstance(value, Mapping):
            return {"value": value}
        for name, remedy in ELSEWHERE.items():
            if name in value:
                raise ValueError(f"{name}: {remedy}")
        return dict(value)

    @field_validator("values", mode="before")
    @classmethod
    def _numbers(cls, value: Any) -> Any:
        return plain(value)

    @field_validator("min", "max", "q", mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError(f"{value!r} is no number")
        return number(value)

    @field_validator("when", mode="before")
    @classmethod
    def _lists(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise ValueError("write the other parameter and its values: {optimizer: [sgd]}")
        return {
            str(name): plain(list(values) if isinstance(values, list | tuple) else [values])
            for name, values in value.items()
        }

    @field_validator("distribution")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        if value in UNBOUNDED:
            raise ValueError(f"'{value}' has no bounds; use uniform with min and max")
        if value is not None and value not in DISTRIBUTIONS:
            raise ValueError(
                f"unknown distribution '{value}'; {nearest(value, list(DISTRIBUTIONS))}"
            )
        return value

    @field_validator("lever")
    @classmethod
    def _lever(cls, value: str) -> str:
        if value and value != "gpus" and "/" not in value:
            raise ValueError(f"'{value}' is no lever; write it as gpu/power_limit, or gpus")
        return value

    @model_validator(mode="after")
    def _one_way(self) -> "ParameterSpec":
        ranged = self.min is not None or self.max is not None
        ways = [
            name
            for name, given in (
                ("values", self.values is not None),
                ("value", "value" in self.model_fields_set),
                ("min and max", ranged),
                ("same_as", self.same_as is not None),
            )
            if given
        ]
        if not ways:
            raise ValueError("it may be nothing; give values, value, min and max, or same_as")
        if len(ways) > 1:
            raise ValueError(f"{' and '.join(ways)} contradict each other; keep one")
        if ranged and (self.min is None or self.max is None):
            raise ValueError(f"{'min' if self.min is None else 'max'} is missing")
        if not ranged and (self.q is not None or self.log):
            raise ValueError(f"{'q' if self.q is not None else 'log'} goes with min and max only")
        _check_distribution(self, ways[0])
        try:
            self.parameter()
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    def parameter(self) -> Parameter:
        """What it stands for.

        Raises:
            ConfigError: it may have no value, such as a minimum above its maximum.
        """
        when = {name: tuple(values) for name, values in self.when.items()}
        lever = self.lever
        if self.same_as is not None:
            return Linked(same_as=self.same_as, when=when, lever=lever)
        if self.values is not None:
            return Choice(values=tuple(self.values), when=when, lever=lever)
        if self.min is None or self.max is None:
            return Fixed(value=self.value, when=when, lever=lever)
        low, high = self.min, self.max
        distribution = self.distribution or ""
        log = self.log or "log" in distribution
        if distribution in ("log_uniform", "q_log_uniform"):
            low, high = math.exp(low), math.exp(high)
        whole = distribution == "int_uniform" or (not distribution and _all_whole(self))
        if whole:
            return Integer(
                low=_whole(low),
                high=_whole(high),
                step=_whole(self.q or 1),
                log=log,
                when=when,
                lever=lever,
            )
        return Real(low=low, high=high, log=log, step=self.q, when=when, lever=lever)


def _all_whole(spec: ParameterSpec) -> bool:
    return all(isinstance(v, int) for v in (spec.min, spec.max, spec.q) if v is not None)


def _whole(value: float) -> int:
    if value != int(value):
        raise ConfigError(f"{value:g} is no whole number")
    return int(value)


def _check_distribution(spec: ParameterSpec, way: str) -> None:
    fitting = {"value": ("constant",), "values": ("categorical",), "same_as": ()}
    allowed = fitting.get(way, tuple(n for n in DISTRIBUTIONS if "uniform" in n))
    if spec.distribution is None:
        return
    if spec.distribution not in allowed:
        raise ValueError(f"distribution {spec.distribution} does not go with {way}")
    if spec.distribution.startswith("q_") and spec.q is None:
        raise ValueError(f"distribution {spec.distribution} needs q, its step")


def _written(parameter: Parameter) -> dict[str, Any]:
    """The fields that say the same as an object."""
    kinds: dict[type, Callable[[Any], dict[str, Any]]] = {
        Choice: lambda p: {"values": list(p.values)},
        Fixed: lambda p: {"value": p.value},
        Linked: lambda p: {"same_as": p.same_as},
        Integer: lambda p: (
            {"min": p.low, "max": p.high, "q": p.step, "log": p.log}
            | {"distribution": "int_uniform"}
        ),
        Real: lambda p: (
            {"min": p.low, "max": p.high, "q": p.step, "log": p.log}
            | {"distribution": _real_distribution(p)}
        ),
    }
    if type(parameter) not in kinds:
        raise ValueError(f"{type(parameter).__name__} has no written form")
    fields = kinds[type(parameter)](parameter)
    when = {name: list(values) for name, values in parameter.when.items()}
    return fields | {"when": when, "lever": parameter.lever}


def _real_distribution(real: Real) -> str:
    scale = "log_uniform_values" if real.log else "uniform"
    return f"q_{scale}" if real.step is not None else scale
