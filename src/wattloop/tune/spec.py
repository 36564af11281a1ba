"""What a search is asked to do, checked, with errors that name line and field.

spec = read_spec("search.yaml")
problem = spec.problem(load_settings())
strategy = strategy_for(spec, problem)
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field, ValidationError, field_validator, model_validator

from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.hardware.lined_yaml import LinedData, read_lined
from wattloop.tune.amounts import plain
from wattloop.tune.cap_metric import cap_metric
from wattloop.tune.hardware_spec import HardwareSpec
from wattloop.tune.objective_spec import ObjectiveSpec
from wattloop.tune.parameter_spec import ParameterSpec, Strict
from wattloop.tune.problem import Problem, Quality
from wattloop.tune.segment import Value
from wattloop.tune.space import Space
from wattloop.tune.spec_command import our_words, said_twice, words_of
from wattloop.tune.spec_parts import EarlyTerminate, LimitsSpec, MetricSpec, StrategySpec

__all__ = ["SearchSpec", "read_spec", "spec_from"]


class SearchSpec(Strict):
    """One search. The field names are those of the YAML file."""

    name: str = ""
    description: str = ""
    command: list[str] = Field(default_factory=list)
    metric: MetricSpec | None = None
    parameters: dict[str, ParameterSpec] = Field(default_factory=dict)
    hardware: HardwareSpec = HardwareSpec()
    objective: ObjectiveSpec = ObjectiveSpec()
    limits: LimitsSpec = LimitsSpec()
    default: dict[str, Value] = Field(default_factory=dict)
    strategy: Annotated[
        StrategySpec, Field(validation_alias=AliasChoices("strategy", "method"))
    ] = StrategySpec(name="race")
    early_terminate: EarlyTerminate | None = None
    rate: str | None = None
    seed: int = 0
    scope: Literal["gpu", "cpu", "dram", "node"] | None = None
    checkpoint: bool = False
    metrics_file: str | None = None
    notes: list[str] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _foreign(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise ValueError("write 'key: value' lines")
        return our_words(value)

    @field_validator("command", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        return words_of(value)

    @field_validator("default", mode="before")
    @classmethod
    def _numbers(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(name): plain(item) for name, item in value.items()}
        return value

    @model_validator(mode="after")
    def _decided(self) -> "SearchSpec":
        """The strategy that is meant where none is named, or a random search stops early."""
        given = "strategy" in self.model_fields_set
        if self.early_terminate is not None:
            if given and self.strategy.name not in ("random", "asha"):
                return self  # a contradiction, which is said with its line
            options = {**self.early_terminate.options(), **self.strategy.options}
            self._set("strategy", StrategySpec(name="asha", options=options))
            self._set("early_terminate", None)
        elif not given and len(self.objective.name) > 1:
            self._set("strategy", StrategySpec(name="nsga2"))
        elif not given and self.metric is None:
            self._set("strategy", StrategySpec(name="random" if self._ranges else "grid"))
        if self._by_metric_alone:
            self._set("objective", ObjectiveSpec(name=["quality"]))
        return self

    @property
    def _by_metric_alone(self) -> bool:
        """Whether only the metric says what is best: no target, and no objective next to it.

        `race` and `sm2` compare what joules buy, whatever the objective.
        """
        open_ended = self.metric is not None and self.metric.target is None
        stated = "objective" in self.model_fields_set
        return open_ended and not stated and self.strategy.name not in ("race", "sm2")

    @property
    def remarks(self) -> list[str]:
        """What to know before the search is paid for: how a metric without a target counts."""
        if self.metric is None or self.metric.target is not None:
            return []
        name, objectives = self.metric.name, self.objective.name
        if objectives == ["quality"]:
            return [
                f"no target for {name}: the best {name} wins, whatever energy it takes; with "
                "metric.target (or --target) the least energy that reaches it is found"
            ]
        if self.objective.needs_quality or self.strategy.name in ("sm2", "asha", "hyperband"):
            return []
        return [
            f"no target for {name}: only {'+'.join(objectives)} decides, and {name} does not "
            "count; give metric.target (or --target), or objective: quality"
        ]

    @property
    def _ranges(self) -> bool:
        return any(written.parameter().listed() is None for written in self.parameters.values())

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)  # frozen for others
        self.__pydantic_fields_set__.add(name)

    @property
    def quality(self) -> Quality:
        """The metric; an empty name when only the objective counts."""
        return Quality(metric="") if self.metric is None else self.metric.quality()

    def space(self) -> Space:
        """Ordinary parameters, then those of the hardware.

        Raises:
            ConfigError: empty, or parameters that contradict each other.
        """
        own = {name: written.parameter() for name, written in self.parameters.items()}
        return Space({**own, **self.hardware.parameters()})

    def problem(self, settings: Settings | None = None) -> Problem:
        """What strategies work on; prices and carbon come from `settings` unless given.

        Raises:
            ConfigError: a price or carbon intensity is needed and nobody states it.
        """
        from wattloop.tune.spec_default import whole_default

        quality = self.quality
        objective = self.objective.objective(settings, maximize=quality.maximize)
        cap = self.hardware.cap
        space = self.space()
        return Problem(
            space=space,
            quality=quality,
            objective=objective,
            default=whole_default(space, self.default),
            limits=self.limits.limits(),
            cap=None if cap is None else cap.search(*cap_metric(objective)),
            rate=self.rate,
            seed=self.seed,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data, from which `spec_from(data)` makes the same again."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


def read_spec(path: str) -> SearchSpec:
    """The search that a YAML file describes.

    Raises:
        ConfigError: `FILE:LINE: field: what is wrong and what is allowed`, one line per fault.
    """
    source = read_lined(path)
    return spec_from(source.data, source)


def spec_from(data: Mapping[str, Any], source: LinedData | None = None) -> SearchSpec:
    """A checked specification from plain data or objects (`{"lr": Real(low=..., high=...)}`).

    Raises:
        ConfigError: with one line per fault; `source` says where the fields stand.
    """
    from wattloop.tune.spec_checks import contradictions
    from wattloop.tune.spec_faults import said, said_of

    plain_data = {str(key): value for key, value in data.items()}
    twice = list(said_twice(plain_data))
    if twice:
        raise ConfigError(said(twice, source))
    try:
        spec = SearchSpec.model_validate(plain_data)
    except ValidationError as error:
        raise ConfigError(said_of(error, SearchSpec, source)) from None
    faults = list(contradictions(spec))
    if faults:
        raise ConfigError(said(faults, source))
    return spec
