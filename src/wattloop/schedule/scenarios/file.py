"""Scenarios from YAML files, and those that are shipped."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from wattloop.core.errors import ConfigError
from wattloop.core.user_code import user_path
from wattloop.core.yaml_spec import (
    YamlWithLines,
    format_errors,
    nearest,
    read_yaml,
    validation_errors,
)
from wattloop.schedule.scenarios.built import built
from wattloop.schedule.scenarios.layers import changed, read_layers
from wattloop.schedule.scenarios.scenario import Scenario
from wattloop.schedule.scenarios.spec import ScenarioSpec

__all__ = ["load_scenario", "scenario_from", "shipped_scenarios"]

SHIPPED = Path(__file__).with_name("shipped")
FILES = ("jobs.trace.file", "oracle.throughputs", "oracle.cap_curves")
"""Fields that name files."""


def load_scenario(name: str, changes: Mapping[str, Any] | None = None) -> Scenario:
    """The scenario of a YAML file, or a shipped one by its name (docs/scenarios.md).

    Args:
        name: a path, or a name such as `thesis-pareto`.
        changes: dotted path of a field -> its value, on top of what the file says, such as
            `{"jobs.trace.file": "jobs.csv"}`; a trace takes the place of generated jobs.

    Raises:
        ConfigError: `FILE:LINE: field: what is wrong and what is allowed`, one line per fault.
    """
    shipped = {path.stem: path for path in SHIPPED.glob("*.yaml")}
    path = name
    if not name.endswith((".yaml", ".yml")) and not Path(name).is_file():
        if name not in shipped:
            raise ConfigError(
                f"no scenario called {name!r}: {nearest(name, sorted(shipped))}; or give the path "
                "of a YAML file (docs/scenarios.md)"
            )
        path = str(shipped[name])
    source = read_layers(path, shipped)
    if not source.data:
        raise ConfigError(
            f"{name}: is empty; a scenario has at least 'cluster' and 'jobs' (docs/scenarios.md)"
        )
    data: Mapping[str, Any] = source.data
    for place, value in (changes or {}).items():
        # a file that is not named in the scenario's file is found from here, not from there
        here = place in FILES and isinstance(value, str)
        data = changed(data, place, str(user_path(value).absolute()) if here else value)
        if place == "jobs.trace.file":
            data = {**data, "jobs": {k: v for k, v in data["jobs"].items() if k != "generate"}}
    _check_trace(data, source)
    return scenario_from(data, source, name=Path(path).stem)


def shipped_scenarios() -> dict[str, str]:
    """Names of the scenarios that come with Wattloop, and what each is."""
    names = sorted(path.stem for path in SHIPPED.glob("*.yaml"))
    return {name: read_yaml(str(SHIPPED / f"{name}.yaml")).data["description"] for name in names}


def scenario_from(
    data: Mapping[str, Any], source: YamlWithLines | None = None, *, name: str = "scenario"
) -> Scenario:
    """A scenario from plain data; `source` says on which lines its fields stand.

    Raises:
        ConfigError: one line per fault.
    """
    try:
        spec = ScenarioSpec.model_validate(_with_horizon(data))
    except ValidationError as error:
        raise ConfigError(
            format_errors(validation_errors(error, ScenarioSpec), source, otherwise=name)
        ) from None
    folder = None if source is None else Path(source.path).parent
    whole, faults = built(spec, name=name, folder=folder)
    if whole is None:
        raise ConfigError(format_errors(faults, source, otherwise=name))
    plain = {key: value for key, value in data.items() if key != "variants"}
    variants = {
        variant: _variant(plain, source, whole.name, variant, changes)
        for variant, changes in spec.variants.items()
    }
    return replace(whole, variants=variants)


def _variant(
    data: Mapping[str, Any],
    source: YamlWithLines | None,
    name: str,
    variant: str,
    changes: Mapping[str, Any],
) -> Scenario:
    try:
        for place, value in changes.items():
            data = changed(data, place, value)
        return scenario_from({**data, "name": f"{name}/{variant}"}, source, name=name)
    except ConfigError as error:
        where = name if source is None else source.where(("variants", variant))
        raise ConfigError(f"{where}: variants.{variant}: {error}") from None


def _check_trace(data: Mapping[str, Any], source: YamlWithLines) -> None:
    """A scenario may leave it to whoever runs it which trace."""
    jobs = data.get("jobs")
    trace = jobs.get("trace") if isinstance(jobs, Mapping) else None
    if isinstance(trace, Mapping) and "file" not in trace:
        where = source.where(("jobs", "trace"))
        raise ConfigError(f"{where}: jobs.trace: which trace? Give --trace FILE, or its 'file'")


def _with_horizon(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Generated jobs come until the simulation ends, unless their section says otherwise."""
    engine, jobs = data.get("engine"), data.get("jobs")
    horizon = engine.get("horizon") if isinstance(engine, Mapping) else None
    made = jobs.get("generate") if isinstance(jobs, Mapping) else None
    endless = horizon is None or horizon == "none"
    if endless or not isinstance(made, Mapping) or {"horizon", "count"} & made.keys():
        return data
    return changed(data, "jobs.generate.horizon", horizon)
