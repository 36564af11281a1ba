"""Specification of a search, validated, with errors that name line and field."""

import difflib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    BeforeValidator,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from wattloop.cap.finder import FINDER_METRICS
from wattloop.core import yaml_spec
from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.core.units import command_words
from wattloop.core.yaml_spec import Fault, YamlWithLines, read_yaml, validation_errors
from wattloop.tune.objective import Objective
from wattloop.tune.search_problem import Problem, Quality
from wattloop.tune.segment import Value
from wattloop.tune.space import Choice, Configuration, Integer, Real, Space, SpaceError
from wattloop.tune.spec_sections import (
    EarlyTerminate,
    HardwareSpec,
    MetricSpec,
    ObjectiveSpec,
    ParameterSpec,
    SearchLimitsSpec,
    SpecModel,
    StrategySpec,
    plain,
)


def format_faults(faults: Iterable[Fault], source: YamlWithLines | None) -> str:
    """Format one line per fault, in the order of the file."""
    if source is not None and ("method",) in source.lines:  # the file's name of the strategy
        faults = [
            (("method", *place[1:]) if place[:1] == ("strategy",) else place, message)
            for place, message in faults
        ]
    return yaml_spec.format_errors(faults, source, otherwise="search")


def cap_metric(objective: Objective) -> tuple[str, float]:
    """Return metric and k for `CapSearch`.

    Carbon, cost of electricity, SM2 and the quotient fall with the energy. Where machine time has
    a price, energy and time are weighed by EDS. Quality does not depend on the cap.
    """
    for name in objective.names:
        if name in FINDER_METRICS:
            return name, objective.k
        if name == "cost" and objective.options.get("price_per_hour"):
            return "eds", objective.k
    return "energy", objective.k


FOREIGN = ("project", "entity", "controller", "job", "image_uri", "kind")
"""Fields of W&B sweeps that only concern their display."""
WHOLE = ["${env}", "${interpreter}", "${program}", "${args}"]
"""W&B's command where only a program is given."""
FIXED = {"${env}": "/usr/bin/env", "${interpreter}": "python"}
ARGUMENTS = ("args", "args_no_boolean_flags", "args_no_hyphens", "args_json", "args_json_file")
"""Macros that are replaced for each trial."""
MACRO = re.compile(r"\$\{([a-z_]+)\}")


def duplicate_fields(data: Mapping[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if "strategy" in data and "method" in data:
        yield ("method",), "it is the same as strategy; keep one"
    limits = data.get("limits")
    if "run_cap" in data and isinstance(limits, Mapping) and "trials" in limits:
        yield ("run_cap",), "it is the same as limits.trials; keep one"


def without_wandb_fields(written: Mapping[str, Any]) -> dict[str, Any]:
    data = dict(written)
    notes = [f"{field}: not used here" for field in FOREIGN if data.pop(field, None) is not None]
    if "run_cap" in data:
        data["limits"] = {**(data.get("limits") or {}), "trials": data.pop("run_cap")}
    program = data.pop("program", None)
    if program is not None:
        command = data.get("command")
        data["command"] = _with_program(WHOLE if command is None else command, str(program))
    return {**data, "notes": [*data.get("notes", []), *notes]}


def split_command(command: Any) -> Any:
    """Split the command into arguments; macros that differ per trial stay."""
    words = command_words(command)
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return words  # refused later
    for macro, text in FIXED.items():
        words = [word.replace(macro, text) for word in words]
    for name in (name for word in words for name in MACRO.findall(word)):
        if name == "program":
            raise ValueError("${program} is missing; give program: train.py")
        if name not in ARGUMENTS:
            known = ", ".join(f"${{{argument}}}" for argument in ARGUMENTS)
            raise ValueError(f"unknown ${{{name}}}; known are {known}")
    return words


def _with_program(command: Any, program: str) -> Any:
    if isinstance(command, str):
        return command.replace("${program}", shlex.quote(program))
    if isinstance(command, list | tuple):
        return [w.replace("${program}", program) if isinstance(w, str) else w for w in command]
    return command


def complete_default(space: Space, given: Mapping[str, Value]) -> Configuration:
    """Return the default configuration; empty when none is given.

    A cap or clock that it does not name is the highest of those listed, which is the factory
    setting of a device.

    Raises:
        ConfigError: it is not a configuration of the space.
    """
    if not given:
        return {}
    values = dict(given)
    for name in space.hardware:
        if name not in values and name != "gpus":
            highest = _highest(space.parameters[name])
            if highest is not None:
                values[name] = highest
    return space.complete(values)


def _highest(parameter: object) -> Value:
    """Return the factory value, as far as the list shows it; None when it does not."""
    if not isinstance(parameter, Choice):
        return None
    if "default" in parameter.values:
        return "default"
    sizes: dict[Value, float] = {}
    for value in parameter.values:
        text = str(value)
        digits = text.rstrip("%WMHzGk ")
        try:
            sizes[value] = float(digits)
        except ValueError:
            return None
    units = {str(value).lstrip("0123456789. ") for value in parameter.values}
    return max(sizes, key=lambda value: sizes[value]) if len(units) == 1 else None


ONE_OBJECTIVE = ("race", "sm2", "asha", "hyperband")
"""Strategies that follow a single objective."""
BY_QUALITY = ("sm2", "asha", "hyperband")
"""Strategies that compare unfinished trainings by their metric."""
ONE_BY_ONE = ("tpe", "nsga2", "gp")
"""Strategies whose sampler scores each training by itself."""
DRAWING = ("random", *ONE_BY_ONE, "asha", "hyperband")
"""Strategies that draw configurations as long as they may."""
SWEEPING = ("race", "sm2")
"""Strategies that can find the learning rate of a configuration themselves."""
PLACEHOLDER = re.compile(r"(?<!\$)\{(\w+)\}")
FILLED_IN = ("trial_dir", "checkpoint", "seed")
"""Placeholders of a command in addition to parameters."""


def contradictions(spec: "SearchSpec") -> Iterator[Fault]:
    twice = [name for name in spec.parameters if name in spec.hardware.parameters()]
    for name in twice:
        yield ("parameters", name), "the hardware section has it, too; keep one"
    yield from _about_command(spec)
    yield from _about_metric(spec)
    yield from _about_strategy(spec)
    if twice:
        return
    try:
        space = spec.space()
    except SpaceError as error:
        yield ("parameters", error.parameter), error.message
        return
    yield from _about_space(spec, space)


def _about_command(spec: "SearchSpec") -> Iterator[Fault]:
    """Find a placeholder that is nearly a parameter; other braces, such as awk's, belong to the
    command.
    """
    known = [*spec.parameters, *spec.hardware.parameters()]
    for word in spec.command or ():
        for name in PLACEHOLDER.findall(word):
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
            if near and name not in (*known, *FILLED_IN):
                yield ("command",), f"{{{name}}} is not a parameter; did you mean {{{near[0]}}}?"


def _about_metric(spec: "SearchSpec") -> Iterator[Fault]:
    if spec.metric is not None:
        return
    needing = spec.objective.needs_quality
    if needing:
        yield ("objective",), f"{needing} needs a metric: what does a training report?"
    if spec.strategy.name in BY_QUALITY:
        yield (
            ("strategy",),
            f"{spec.strategy.name} compares trainings by their quality: give a metric",
        )


def _about_strategy(spec: "SearchSpec") -> Iterator[Fault]:
    name, objectives = spec.strategy.name, spec.objective.name
    if len(objectives) > 1 and name in ONE_OBJECTIVE:
        yield (
            ("objective",),
            f"{name} follows one objective; for a front of {' and '.join(objectives)} use nsga2, "
            "tpe, gp, random or grid",
        )
    if spec.early_terminate is not None:
        yield (
            ("early_terminate",),
            f"it goes with method random; {name} decides by itself how long a training goes on: "
            "leave it out",
        )
    if "sm2" in objectives and name in ONE_BY_ONE:
        yield (
            ("objective",),
            f"{name} scores each training by itself, and sm2 only compares several: use the "
            "strategy sm2, grid or random",
        )
    if spec.hardware.cap is not None and objectives == ["time"]:
        yield (
            ("hardware", "power_limit"),
            "with least time as the objective the highest cap is best: leave it out",
        )


def _about_space(spec: "SearchSpec", space: Space) -> Iterator[Fault]:
    if not space.parameters and spec.hardware.cap is None:
        yield ("parameters",), "the space is empty: give at least one parameter"
    elif not space.varied and spec.hardware.cap is None:
        yield (
            ("parameters",),
            "nothing to search: every parameter has a single value; give one several, or "
            "hardware: {power_limit: auto}",
        )
    limits = spec.limits
    ends = (limits.trials, limits.energy_j, limits.time_s)
    if spec.strategy.name in DRAWING and space.size is None and all(e is None for e in ends):
        yield (
            ("limits",),
            f"{spec.strategy.name} never ends by itself over a range: give trials, energy or time",
        )
    if spec.strategy.name == "grid":
        try:
            space.grid()
        except SpaceError as error:
            yield ("parameters", error.parameter), error.message
    yield from _about_rate(spec, space)
    for name in spec.default:
        if name not in space.parameters:
            known = ", ".join(space.parameters)
            yield ("default", name), f"no parameter of this space; it has {known}"
            return
    try:
        complete_default(space, spec.default)
    except SpaceError as error:
        yield ("default", error.parameter), error.message


def _about_rate(spec: "SearchSpec", space: Space) -> Iterator[Fault]:
    if spec.rate is None:
        return
    if spec.rate not in space.parameters:
        known = ", ".join(space.parameters)
        yield ("rate",), f"'{spec.rate}' is not a parameter of this space; it has {known}"
        return
    parameter = space.parameters[spec.rate]
    numbers = isinstance(parameter, Real | Integer) or (
        isinstance(parameter, Choice)
        and all(isinstance(v, int | float) and not isinstance(v, bool) for v in parameter.values)
    )
    if not numbers or parameter.lever:
        yield ("rate",), f"'{spec.rate}' must be a parameter with numbers to choose among"
    elif spec.command and spec.strategy.name in SWEEPING:
        yield (
            ("rate",),
            f"{spec.strategy.name} sweeps rates inside a training, which a command does not "
            f"allow: leave rate out, and '{spec.rate}' is searched as any other parameter",
        )


# spec = read_spec("search.yaml")
# problem = spec.problem(load_settings())
# strategy = strategy_for(spec, problem)


class SearchSpec(SpecModel):
    """Specification of one search. The field names are those of the YAML file."""

    name: str = ""
    description: str = ""
    command: Annotated[list[str], BeforeValidator(split_command)] = Field(default_factory=list)
    metric: MetricSpec | None = None
    parameters: dict[str, ParameterSpec] = Field(default_factory=dict)
    hardware: HardwareSpec = HardwareSpec()
    objective: ObjectiveSpec = ObjectiveSpec()
    limits: SearchLimitsSpec = SearchLimitsSpec()
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
        return without_wandb_fields(value)

    @field_validator("default", mode="before")
    @classmethod
    def _numbers(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {str(name): plain(item) for name, item in value.items()}
        return value

    @model_validator(mode="after")
    def _decided(self) -> "SearchSpec":
        """Choose the strategy where none is named, or where a random search stops early."""
        given = "strategy" in self.model_fields_set
        if self.early_terminate is not None:
            if given and self.strategy.name not in ("random", "asha"):
                return self  # a contradiction, reported with its line
            options = {**self.early_terminate.options(), **self.strategy.options}
            self._set("strategy", StrategySpec(name="asha", options=options))
            self._set("early_terminate", None)
        elif not given and len(self.objective.name) > 1:
            self._set("strategy", StrategySpec(name="nsga2"))
        elif not given and self.metric is None:
            ranges = any(p.parameter().listed() is None for p in self.parameters.values())
            self._set("strategy", StrategySpec(name="random" if ranges else "grid"))
        elif not given and self._is_open_ended and not (self.hardware.cap or self.rate):
            self._set("strategy", StrategySpec(name="asha"))
        if self._is_open_ended and self.strategy.name not in ("race", "sm2"):
            self._set("objective", ObjectiveSpec(name=["quality"]))
        return self

    @property
    def _is_open_ended(self) -> bool:
        """Return whether there is a metric without a target and without an objective.

        Then only the metric decides, except that `race` and `sm2` compare what joules buy.
        """
        without_target = self.metric is not None and self.metric.target is None
        return without_target and "objective" not in self.model_fields_set

    @property
    def remarks(self) -> list[str]:
        """Return remarks to show before the search: the use of a metric without a target."""
        if self.metric is None or self.metric.target is not None:
            return []
        name, objectives = self.metric.name, self.objective.name
        if self.strategy.name == "race":
            return [
                f"no target for {name}: race looks for the least energy to the same {name}, not "
                "for the best, and may end with the first configuration; give metric.target "
                "(or --target), or a strategy such as asha"
            ]
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

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)  # the model is frozen
        self.__pydantic_fields_set__.add(name)

    @property
    def quality(self) -> Quality:
        """Return the metric; its name is empty when only the objective counts."""
        return Quality(metric="") if self.metric is None else self.metric.quality()

    def space(self) -> Space:
        """Return the space: ordinary parameters, then those of the hardware."""
        own = {name: written.parameter() for name, written in self.parameters.items()}
        return Space({**own, **self.hardware.parameters()})

    def problem(self, settings: Settings | None = None) -> Problem:
        """Return the problem for strategies; prices and carbon come from `settings` unless given.

        Raises:
            ConfigError: a price or carbon intensity is needed but missing.
        """
        quality = self.quality
        objective = self.objective.objective(settings, maximize=quality.maximize)
        cap = self.hardware.cap
        space = self.space()
        return Problem(
            space=space,
            quality=quality,
            objective=objective,
            default=complete_default(space, self.default),
            limits=self.limits.limits(),
            cap=None if cap is None else cap.search(*cap_metric(objective)),
            rate=self.rate,
            seed=self.seed,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, from which `spec_from(data)` builds the same specification."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


def read_spec(path: str) -> SearchSpec:
    """Read the specification in a YAML file.

    Raises:
        ConfigError: `FILE:LINE: field: what is wrong and what is allowed`, one line per fault.
    """
    source = read_yaml(path)
    return spec_from(source.data, source)


def given_fields(**fields: Any) -> dict[str, Any]:
    """Return those that were given; None stands for a field that was not."""
    return {name: value for name, value in fields.items() if value is not None}


def stored_spec(data: Mapping[str, Any]) -> SearchSpec:
    """Build the specification of a stored search: one that names no strategy has run `race`."""
    return spec_from({"strategy": "race", **data})


def spec_from(data: Mapping[str, Any], source: YamlWithLines | None = None) -> SearchSpec:
    """Build a validated specification; parameters may be objects such as `Real`.

    Raises:
        ConfigError: with one line per fault; `source` has the lines of the fields.
    """
    plain_data = {str(key): value for key, value in data.items()}
    twice = list(duplicate_fields(plain_data))
    if twice:
        raise ConfigError(format_faults(twice, source))
    try:
        spec = SearchSpec.model_validate(plain_data)
    except ValidationError as error:
        raise ConfigError(format_faults(validation_errors(error, SearchSpec), source)) from None
    faults = list(contradictions(spec))
    if faults:
        raise ConfigError(format_faults(faults, source))
    return spec
