"""The scenario of a command line: a file, and options that change it."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from wattloop.cli.options import option
from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path

if TYPE_CHECKING:
    from wattloop.schedule.scenarios.scenario import Scenario

Seeds = Annotated[
    str | None,
    option("--seeds -s SEEDS", "How many, 0..99, or a list such as 3,5 (default: the scenario's)."),
]
Variant = Annotated[str | None, option("--variant NAME", "Only this variant of the scenario.")]
Workers = Annotated[int | None, option("--workers -w", "Processes (default: one per processor).")]
Trace = Annotated[str | None, option("--trace FILE", "Jobs of this trace in place of its own.")]
Budget = Annotated[
    str | None, option("--budget POWER", "Power budget of the cluster: 4500 or 4.5kW.")
]
Set = Annotated[
    list[str] | None, option("--set KEY=VALUE", "Any field of the scenario, by its path (a.b.c=1).")
]
New = Annotated[bool, option("--new", "Compute everything again, also what is known already.")]
FLAGS = {"budget": "--budget ", "engine.horizon": "--horizon ", "jobs.trace.file": "--trace "}
"""Field that an option changes -> that option."""


@dataclass(frozen=True, kw_only=True)
class ScenarioOptions:
    """Options that change the simulation of a scenario."""

    horizon: Annotated[
        str | None, option("--horizon TIME", "When the simulation ends, such as 10h.")
    ] = None
    throughputs: Annotated[
        list[str] | None,
        option("--throughputs FILE", "Oracle from a table of throughputs (Gavel's form)."),
    ] = None
    cap_curves: Annotated[
        list[str] | None,
        option("--cap-curves FILE", "Power under caps, with --throughputs (Zeus's form)."),
    ] = None
    changes: Set = None


def read_scenario(
    name: str,
    *,
    variant: str | None = None,
    trace: str | None = None,
    budget: str | None = None,
    horizon: str | None = None,
    throughputs: list[str] | None = None,
    cap_curves: list[str] | None = None,
    changes: list[str] | None = None,
) -> "Scenario":
    """Return the scenario of a file with the options applied.

    Raises:
        ConfigError: not there, or wrong; names file, line and field, or the option.
    """
    from wattloop.schedule.scenarios.file import load_scenario

    if cap_curves and not throughputs:
        raise ConfigError("--cap-curves goes with --throughputs: caps of which throughputs?")
    fields = _changed_fields(changes or [])
    given = {"budget": budget, "engine.horizon": horizon, "jobs.trace.file": _here(trace)}
    fields |= {field: value for field, value in given.items() if value is not None}
    if throughputs:
        fields["oracle"] = {
            "kind": "table",
            "noise": load_scenario(name, fields).oracle.noise,
            "throughputs": [_here(file) for file in throughputs],
            "cap_curves": [_here(file) for file in cap_curves or ()],
        }
    try:
        scenario = load_scenario(name, fields)
    except ConfigError as error:
        if fields and _is_fine(name):
            options = {field for field, value in given.items() if value is not None}
            raise ConfigError(_of_options(str(error), fields, options)) from None
        raise
    if variant is None:
        return scenario
    if variant not in scenario.variants:
        from wattloop.core.yaml_spec import nearest
        from wattloop.schedule.campaigns.campaign import AS_WRITTEN

        if variant == AS_WRITTEN:
            return replace(scenario, variants={})
        known = list(scenario.variants)
        said = nearest(variant, known) if known else "it has none"
        raise ConfigError(f"--variant {variant}: {scenario.name} has no such variant; {said}")
    return scenario.variants[variant]


def _is_fine(name: str) -> bool:
    """Return True when the file alone is valid, so that an option is at fault."""
    from wattloop.schedule.scenarios.file import load_scenario

    try:
        load_scenario(name)
    except ConfigError:
        return False
    return True


def _of_options(message: str, fields: Mapping[str, Any], options: Collection[str]) -> str:
    """Report errors by the option at fault instead of by a line of a valid file."""
    words = []
    for name, value in fields.items():
        if name == "oracle":
            words += [f"--throughputs {file}" for file in value["throughputs"]]
        elif value is not None:
            words.append(f"{FLAGS[name] if name in options else f'--set {name}='}{value}")
    faults = [re.sub(r"^.*?\.ya?ml(:\d+)?: ", "", line) for line in message.splitlines()]
    return f"{' '.join(words)}: {'; '.join(faults)}"


def _changed_fields(changes: list[str]) -> dict[str, Any]:
    """Parse `--set`: dotted field -> value."""
    import yaml

    found: dict[str, Any] = {}
    for change in changes:
        name, equals, value = change.partition("=")
        if not (name.strip() and equals):
            raise ConfigError(f"--set {change}: write FIELD=VALUE, such as engine.horizon=10h")
        try:
            found[name.strip()] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ConfigError(f"--set {change}: {value!r} is not a YAML value") from None
    return found


def _here(name: str | None) -> str | None:
    return None if name is None else str(user_path(name).absolute())
