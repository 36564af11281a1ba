"""What `wattloop simulate` was asked to do, and the scenario, policies and seeds that makes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.core.user_code import user_path

if TYPE_CHECKING:
    from wattloop.schedule.campaigns.campaign import PolicyChoice
    from wattloop.schedule.scenarios.scenario import Scenario

__all__ = ["SimulateRequest", "choices_of", "scenario_of", "seeds_of"]

FLAGS = {
    "budget": "--budget ",
    "engine.horizon": "--horizon ",
    "jobs.trace.file": "--trace ",
}
"""Field that an option changes -> that option."""


@dataclass(slots=True, kw_only=True)
class SimulateRequest:
    """Options as they were given; None or empty means not given."""

    scenario: str
    settings: Settings
    policies: str | None = None
    seeds: str | None = None
    workers: int | None = None
    variant: str | None = None
    trace: str | None = None
    budget: str | None = None
    horizon: str | None = None
    throughputs: list[str] = field(default_factory=list)
    cap_curves: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    max_delay: str | None = None
    check: bool = False
    plot: str | None = None
    new: bool = False
    json_file: str | None = None


def scenario_of(request: SimulateRequest) -> "Scenario":
    """The scenario that file and options make.

    Raises:
        ConfigError: not there, or wrong; names file, line and field, or the option.
    """
    from wattloop.schedule.scenarios.file import load_scenario

    if request.cap_curves and not request.throughputs:
        raise ConfigError("--cap-curves goes with --throughputs: caps of which throughputs?")
    fields = _fields(request)
    try:
        scenario = load_scenario(request.scenario, fields)
    except ConfigError as error:
        if fields and _is_fine(request.scenario):
            raise ConfigError(_of_options(str(error), fields)) from None
        raise
    if request.variant is None:
        return scenario
    if request.variant not in scenario.variants:
        from wattloop.core.yaml_spec import nearest
        from wattloop.schedule.campaigns.campaign import AS_WRITTEN

        if request.variant == AS_WRITTEN:
            return replace(scenario, variants={})
        known = list(scenario.variants)
        said = nearest(request.variant, known) if known else "it has none"
        raise ConfigError(
            f"--variant {request.variant}: {scenario.name} has no such variant; {said}"
        )
    return scenario.variants[request.variant]


def _is_fine(name: str) -> bool:
    """Whether the file alone could be used: then an option is at fault."""
    from wattloop.schedule.scenarios.file import load_scenario

    try:
        load_scenario(name)
    except ConfigError:
        return False
    return True


def _of_options(message: str, fields: Mapping[str, Any]) -> str:
    """Faults by what was given on the command line; the lines of a file that is right mislead."""
    words = []
    for name, value in fields.items():
        if name == "oracle":
            words += [f"--throughputs {file}" for file in value["throughputs"]]
        elif value is not None:
            words.append(f"{FLAGS.get(name, f'--set {name}=')}{value}")
    faults = [re.sub(r"^.*?\.ya?ml(:\d+)?: ", "", line) for line in message.splitlines()]
    return f"{' '.join(words)}: {'; '.join(faults)}"


def _fields(request: SimulateRequest) -> dict[str, Any]:
    """Dotted field -> value, from all options that change one."""
    import yaml

    found: dict[str, Any] = {}
    for change in request.changes:
        name, equals, value = change.partition("=")
        if not (name.strip() and equals):
            raise ConfigError(f"--set {change}: write FIELD=VALUE, such as engine.horizon=10h")
        try:
            found[name.strip()] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ConfigError(f"--set {change}: {value!r} is not a YAML value") from None
    given: Mapping[str, Any] = {
        "budget": request.budget,
        "engine.horizon": request.horizon,
        "jobs.trace.file": _here(request.trace),
    }
    found |= {name: value for name, value in given.items() if value is not None}
    if request.throughputs:
        from wattloop.schedule.scenarios.file import load_scenario

        found["oracle"] = {
            "kind": "table",
            "noise": load_scenario(request.scenario, found).oracle.noise,
            "throughputs": [_here(name) for name in request.throughputs],
            "cap_curves": [_here(name) for name in request.cap_curves],
        }
    return found


def _here(name: str | None) -> str | None:
    """A path given on the command line starts here, not at the scenario's file."""
    return None if name is None else str(user_path(name).absolute())


def choices_of(request: SimulateRequest, scenario: "Scenario") -> "tuple[PolicyChoice, ...]":
    """The policies, or those that the scenario proposes."""
    from wattloop.schedule.campaigns.campaign import PolicyChoice
    from wattloop.schedule.policies.registry import POLICIES, split_policies

    given: Sequence[str | Mapping[str, Any]] = scenario.policies
    if request.policies is not None:
        is_all = request.policies.strip() == "all"
        given = tuple(POLICIES) if is_all else split_policies(request.policies)
    if request.max_delay is not None:
        given = _with_delay(given, request.max_delay)
    return tuple(PolicyChoice.named(each) for each in given)


def _with_delay(
    given: Sequence[str | Mapping[str, Any]], delay: str
) -> list[str | Mapping[str, Any]]:
    """The promise for each policy that can make it."""
    from wattloop.schedule.policies.registry import with_parameter

    found = [(each, with_parameter(each, "max_delay", delay)) for each in given]
    if not any(changed for _, changed in found):
        raise ConfigError(
            f"--max-delay {delay}: none of these policies promises a delay; add --policies helios"
        )
    return [each if changed is None else changed for each, changed in found]


def seeds_of(request: SimulateRequest, scenario: "Scenario") -> tuple[int, ...]:
    """The seeds, or those that the scenario proposes."""
    from wattloop.schedule.campaigns.campaign import seeds_from

    return scenario.seeds if request.seeds is None else seeds_from(request.seeds)
