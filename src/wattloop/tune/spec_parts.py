"""Small sections of a search as people write it: metric, limits, strategy, early stopping."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field, field_validator, model_validator

from wattloop.hardware.lined_yaml import nearest
from wattloop.tune.amounts import joules, number, seconds
from wattloop.tune.parameter_spec import Strict
from wattloop.tune.problem import Limits, Quality
from wattloop.tune.strategies import STRATEGIES

__all__ = ["EarlyTerminate", "LimitsSpec", "MetricSpec", "StrategySpec"]

SMALLER = ("loss", "error", "perplexity", "ppl", "mse", "mae", "rmse", "nll", "bpc", "wer", "cer")
OTHER_NAMES = {"bayes": "tpe", "nsga-ii": "nsga2", "nsgaii": "nsga2", "sha": "asha"}
"""What others call it -> what we do."""


class MetricSpec(Strict):
    """What a training reports of its quality, which way is better, and what is good enough."""

    name: Annotated[str, Field(min_length=1)]
    goal: Literal["maximize", "minimize"]
    target: Annotated[float | None, Field(allow_inf_nan=False)] = None

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
            # W&B minimizes whatever has no goal, which throws away the best accuracy
            # (fields that are not known are said first: one of them may be a goal with a typo)
            known = value.keys() <= cls.model_fields.keys()
            if known and not any(word in name.lower() for word in SMALLER):
                raise ValueError(f"is more of '{name}' better? Give goal: maximize or minimize")
            value["goal"] = "minimize"
        return value

    @field_validator("target", mode="before")
    @classmethod
    def _number(cls, value: Any) -> Any:
        return number(value)

    def quality(self) -> Quality:
        """As a strategy sees it."""
        return Quality(metric=self.name, maximize=self.goal == "maximize", target=self.target)


class LimitsSpec(Strict):
    """What the search may spend. Nothing given is no limit.

    `energy` and `time` are of the whole search, `trials` counts configurations, `epochs` are
    of one training, `trial_timeout` is the longest that one stretch of it may take.
    """

    energy_j: Annotated[float | None, Field(gt=0, alias="energy")] = None
    time_s: Annotated[
        float | None,
        Field(gt=0, validation_alias=AliasChoices("time", "deadline"), serialization_alias="time"),
    ] = None
    trials: Annotated[int | None, Field(gt=0)] = None
    epochs: Annotated[float | None, Field(gt=0)] = None
    trial_timeout_s: Annotated[float | None, Field(gt=0, alias="trial_timeout")] = None

    @model_validator(mode="before")
    @classmethod
    def _one_time(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and "time" in value and "deadline" in value:
            raise ValueError("time and deadline are the same; keep one")
        return value

    @field_validator("energy_j", mode="before")
    @classmethod
    def _joules(cls, value: Any) -> Any:
        return joules(value)

    @field_validator("time_s", "trial_timeout_s", mode="before")
    @classmethod
    def _seconds(cls, value: Any) -> Any:
        return seconds(value)

    def limits(self) -> Limits:
        """As a strategy sees them."""
        return Limits(
            energy_j=self.energy_j,
            time_s=self.time_s,
            candidates=self.trials,
            epochs=self.epochs,
            trial_time_s=self.trial_timeout_s,
        )


class StrategySpec(Strict):
    """Who decides what is trained next, and its options."""

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
        return {str(name): number(option) for name, option in value.items()}


class EarlyTerminate(Strict):
    """Early stopping as W&B writes it; it makes a random search one by successive halving."""

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
        """The same for our `asha`."""
        first = self.min_iter or max(1, round((self.max_iter or 1) / self.eta ** (self.s or 0)))
        options: dict[str, Any] = {"eta": self.eta, "rung_epochs": first}
        return options | ({"rungs": self.s + 1} if self.s is not None else {})
