"""Sections of a search specification: parameters, objective, hardware, metric, limits, strategy."""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from wattloop.accounting.carbon import find_intensity
from wattloop.cap.finder import FINDER_METRICS
from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.core.units import Dimension, Values, counts, expanded, quantity, seconds
from wattloop.core.yaml_spec import nearest
from wattloop.tune.objective import NEED_QUALITY, OBJECTIVES, OPTIONS, Objective
from wattloop.tune.search_problem import Limits, Quality
from wattloop.tune.segment import CAP_LEVER, CapRequest, Value
from wattloop.tune.space import Choice, Fixed, Integer, Linked, Parameter, Real
from wattloop.tune.strategies import STRATEGIES

EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
"""Numbers that YAML 1.1 reads as text: `1e-3` has no dot, `1.e3` no sign."""


def joules(value: Any) -> Any:
    """Parse `500 J`, `20 kJ`, `2 Wh` or `1.5 kWh` as joules; other types are refused later."""
    if not isinstance(value, str):
        return value
    what = "an energy; write joules, '20 kJ', '5 Wh' or '2 kWh'"
    return quantity(value, Dimension.ENERGY, what=what).value


def parse_exponent(value: Any) -> Any:
    """Convert `1e-3` to a number where YAML has read it as a text."""
    if isinstance(value, str) and EXPONENT.fullmatch(value.strip()):
        return float(value)
    return value


def plain(value: Any) -> Any:
    return (
        [parse_exponent(item) for item in value]
        if isinstance(value, list | tuple)
        else parse_exponent(value)
    )


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
"""Fields of W&B without an equivalent here -> what to write instead."""
Scalar = Annotated[Value, BeforeValidator(parse_exponent)]
Seconds = Annotated[float | None, Field(gt=0), BeforeValidator(seconds)]
Joules = Annotated[float | None, Field(gt=0), BeforeValidator(joules)]


class SpecModel(BaseModel):
    """Base model: unknown fields are errors; aliases are the names in the file."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class ParameterSpec(SpecModel):
    """Specification of a parameter: `values`, `value`, `min` and `max`, or `same_as`."""

    values: Annotated[list[Scalar] | None, BeforeValidator(plain)] = None
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

    @field_validator("min", "max", "q", mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError(f"{value!r} is not a number")
        return parse_exponent(value)

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
            raise ValueError(f"'{value}' is not a lever; write it as gpu/power_limit, or gpus")
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
        written = [v for v in (self.min, self.max, self.q) if v is not None]
        whole = distribution == "int_uniform" or (
            not distribution and all(isinstance(v, int) for v in written)
        )
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


def _whole(value: float) -> int:
    if value != int(value):
        raise ConfigError(f"{value:g} is not a whole number")
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


def _range(parameter: Integer | Real) -> dict[str, Any]:
    return {"min": parameter.low, "max": parameter.high, "q": parameter.step, "log": parameter.log}


def _written(parameter: Parameter) -> dict[str, Any]:
    kinds: dict[type, Callable[[Any], dict[str, Any]]] = {
        Choice: lambda p: {"values": list(p.values)},
        Fixed: lambda p: {"value": p.value},
        Linked: lambda p: {"same_as": p.same_as},
        Integer: lambda p: {**_range(p), "distribution": "int_uniform"},
        Real: lambda p: {
            **_range(p),
            "distribution": ("q_" if p.step is not None else "")
            + ("log_uniform_values" if p.log else "uniform"),
        },
    }
    if type(parameter) not in kinds:
        raise ValueError(f"{type(parameter).__name__} has no written form")
    fields = kinds[type(parameter)](parameter)
    when = {name: list(values) for name, values in parameter.when.items()}
    return fields | {"when": when, "lever": parameter.lever}


NO_TARIFF = (
    "objective cost: no price of electricity; give price_per_kwh, or set tariff.per_kwh in "
    "wattloop.yaml or WATTLOOP_TARIFF"
)


class ObjectiveSpec(SpecModel):
    """Specification of the objective, minimized among trainings that reach the target.

    `k` is of EDS, `alpha` and `beta` of SM2. Prices and carbon intensity are those of the
    settings unless they are given.
    """

    name: list[str] = Field(default_factory=lambda: ["energy"])
    k: Annotated[float, Field(gt=1)] = 2.0
    alpha: Annotated[float | None, Field(ge=0, le=1)] = None
    beta: Annotated[float | None, Field(ge=0, le=1)] = None
    price_per_kwh: Annotated[float | None, Field(ge=0)] = None
    price_per_hour: Annotated[float | None, Field(ge=0)] = None
    carbon_g_per_kwh: Annotated[float | None, Field(ge=0)] = None

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, value: Any) -> Any:
        if isinstance(value, Objective):
            return {"name": list(value.names), "k": value.k, **value.options}
        if isinstance(value, str | list | tuple):
            value = {"name": value}
        if not isinstance(value, Mapping):
            raise ValueError("write a name such as energy, or a list of names")
        names = value.get("name", ["energy"])
        return {**value, "name": [names] if isinstance(names, str) else list(names)}

    @field_validator("name")
    @classmethod
    def _known(cls, names: list[str]) -> list[str]:
        if not names:
            raise ValueError("no objective; give one, such as energy")
        for name in names:
            if name not in OBJECTIVES:
                raise ValueError(f"unknown objective '{name}'; {nearest(name, list(OBJECTIVES))}")
        if len(set(names)) < len(names):
            raise ValueError(f"{', '.join(names)}: one is given twice")
        return names

    @property
    def needs_quality(self) -> str:
        """Return the first of its names that needs a metric; empty for none."""
        return next((name for name in self.name if name in NEED_QUALITY), "")

    def objective(self, settings: Settings | None = None, *, maximize: bool = True) -> Objective:
        return Objective(
            names=tuple(self.name),
            maximize_quality=maximize,
            k=self.k,
            options=self._options(settings or Settings()),
        )

    def _options(self, settings: Settings) -> dict[str, float]:
        given = {name: getattr(self, name) for name in OPTIONS}
        options = {name: value for name, value in given.items() if value is not None}
        if "cost" in self.name and "price_per_kwh" not in options:
            if settings.tariff_per_kwh is None:
                raise ConfigError(NO_TARIFF)
            options["price_per_kwh"] = settings.tariff_per_kwh
        if "carbon" in self.name and "carbon_g_per_kwh" not in options:
            search = find_intensity(settings)
            if search.found is None:
                raise ConfigError(f"objective carbon: give carbon_g_per_kwh; or {search.reason}")
            options["carbon_g_per_kwh"] = search.found.g_co2e_per_kwh
        return options


LEVERS = {
    CAP_LEVER: "gpu/power_limit",
    "sm_clock": "gpu/sm_clock",
    "memory_clock": "gpu/memory_clock",
}
AUTO = "auto"
Levels = Annotated[Values, BeforeValidator(expanded)]


class CapSpec(SpecModel):
    """Specification of a cap that is searched inside trainings.

    `auto` may list the allowed caps in watts; by itself it means those that the device offers.
    """

    auto: Literal[True] | list[Annotated[float, Field(gt=0)]] = True
    metric: str | None = None
    k: Annotated[float, Field(gt=1)] = 2.0
    longest_s: Seconds = Field(default=None, alias="longest")

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

    @field_validator("metric")
    @classmethod
    def _known(cls, value: str | None) -> str | None:
        if value is not None and value not in FINDER_METRICS:
            raise ValueError(f"unknown metric '{value}'; {nearest(value, FINDER_METRICS)}")
        return value

    def search(self, metric: str, k: float) -> CapRequest:
        own = self.metric is not None
        return CapRequest(
            metric=self.metric or metric,
            k=self.k if own or "k" in self.model_fields_set else k,
            caps_w=() if self.auto is True else tuple(self.auto),
            longest_s=self.longest_s,
        )


class HardwareSpec(SpecModel):
    """Specification of the hardware parameters. What is not named is not changed.

    With `combine: each` one parameter is varied at a time: while it differs from the first value of
    its list, the others keep the machine's settings.
    """

    combine: Literal["grid", "each"] = "grid"
    power_limit: CapSpec | Levels | None = None
    sm_clock: Levels | None = None
    memory_clock: Levels | None = None
    gpus: Annotated[list[Annotated[int, Field(ge=1, le=1024)]] | None, BeforeValidator(counts)] = (
        None
    )
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

    @model_validator(mode="after")
    def _whole_lists(self) -> "HardwareSpec":
        for name, values in self._listed():
            if not values:
                raise ValueError(f"{name}: no value; give at least one")
            if len(set(values)) < len(values):
                raise ValueError(f"{name}: {values}: one is given twice")
        for name in self.levers:
            if "/" not in name:
                raise ValueError(f"levers: '{name}' is not a lever; write it as cpu/governor")
        return self

    @property
    def cap(self) -> CapSpec | None:
        """Return the cap that is searched inside trainings; None when there is none, or a list."""
        return self.power_limit if isinstance(self.power_limit, CapSpec) else None

    def parameters(self) -> dict[str, Parameter]:
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


SMALLER = ("loss", "error", "perplexity", "ppl", "mse", "mae", "rmse", "nll", "bpc", "wer", "cer")
OTHER_NAMES = {"bayes": "tpe", "nsga-ii": "nsga2", "nsgaii": "nsga2", "sha": "asha"}
"""Names of other tools -> our strategy."""


class MetricSpec(SpecModel):
    """Specification of the quality metric, its direction, and its target."""

    name: Annotated[str, Field(min_length=1)]
    goal: Literal["maximize", "minimize"]
    target: Annotated[float | None, Field(allow_inf_nan=False), BeforeValidator(parse_exponent)] = (
        None
    )

    @model_validator(mode="before")
    @classmethod
    def _goal(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = {"name": value}
        if not isinstance(value, Mapping):
            raise ValueError("write the name under which a training reports it, and a goal")
        value = dict(value)
        name = str(value.get("name", ""))
        if name and "goal" not in value:
            # W&B minimizes a metric without a goal, which would discard the best accuracy.
            # Unknown fields are reported first: one of them may be a goal with a typo.
            known = value.keys() <= cls.model_fields.keys()
            if known and not any(word in name.lower() for word in SMALLER):
                raise ValueError(f"is more of '{name}' better? Give goal: maximize or minimize")
            value["goal"] = "minimize"
        return value

    def quality(self) -> Quality:
        return Quality(metric=self.name, maximize=self.goal == "maximize", target=self.target)


class SearchLimitsSpec(SpecModel):
    """Limits of the search. What is not given is unlimited.

    `energy` and `time` apply to the whole search, `trials` counts configurations, `epochs` apply to
    one training, `trial_timeout` is the longest that one segment may take.
    """

    energy_j: Joules = Field(default=None, alias="energy")
    time_s: Seconds = Field(
        default=None, validation_alias=AliasChoices("time", "deadline"), serialization_alias="time"
    )
    trials: Annotated[int | None, Field(gt=0)] = None
    epochs: Annotated[float | None, Field(gt=0)] = None
    trial_timeout_s: Seconds = Field(default=None, alias="trial_timeout")

    @model_validator(mode="before")
    @classmethod
    def _one_time(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and "time" in value and "deadline" in value:
            raise ValueError("time and deadline are the same; keep one")
        return value

    def limits(self) -> Limits:
        return Limits(
            energy_j=self.energy_j,
            time_s=self.time_s,
            candidates=self.trials,
            epochs=self.epochs,
            trial_time_s=self.trial_timeout_s,
        )


class StrategySpec(SpecModel):
    """Specification of the strategy and its options."""

    name: str
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _flat(cls, value: Any) -> Any:
        if isinstance(value, str):
            return {"name": value}
        if not isinstance(value, Mapping):
            raise ValueError(f"write its name: {', '.join(STRATEGIES)}")
        given = dict(value)
        own = {key: given.pop(key) for key in ("name", "options") if key in given}
        options = own.get("options") or {}
        if not isinstance(options, Mapping):
            raise ValueError("options: write 'key: value' lines")
        return {**own, "options": {**options, **given}}

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        known = OTHER_NAMES.get(name.lower(), name.lower())
        if known not in STRATEGIES:
            raise ValueError(f"unknown strategy '{name}'; {nearest(known, list(STRATEGIES))}")
        return known

    @field_validator("options", mode="before")
    @classmethod
    def _numbers(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {str(name): parse_exponent(option) for name, option in value.items()}


class EarlyTerminate(SpecModel):
    """Early stopping as in W&B; it turns a random search into successive halving."""

    type: Literal["hyperband"]
    min_iter: Annotated[int | None, Field(ge=1)] = None
    max_iter: Annotated[int | None, Field(ge=1)] = None
    s: Annotated[int | None, Field(ge=1)] = None
    eta: Annotated[float, Field(gt=1)] = 3
    strict: Literal[True] = True

    @field_validator("strict", mode="before")
    @classmethod
    def _always(cls, value: Any) -> Any:
        if value is False:
            raise ValueError("only strict stopping is understood; leave it out")
        return value

    @model_validator(mode="after")
    def _one_way(self) -> "EarlyTerminate":
        if (self.min_iter is None) == (self.max_iter is None):
            raise ValueError("give min_iter, or max_iter and s")
        if (self.max_iter is None) != (self.s is None):
            raise ValueError("max_iter and s go together")
        return self

    def options(self) -> dict[str, Any]:
        first = self.min_iter or max(1, round((self.max_iter or 1) / self.eta ** (self.s or 0)))
        options: dict[str, Any] = {"eta": self.eta, "rung_epochs": first}
        return options | ({"rungs": self.s + 1} if self.s is not None else {})
