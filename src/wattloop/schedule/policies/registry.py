"""Registry of policies: the shipped ones by name, and those of a user's file or package."""

import importlib
import inspect
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from wattloop.core.errors import ConfigError
from wattloop.core.user_code import load_user_code
from wattloop.core.yaml_spec import nearest
from wattloop.schedule.policies.base import Policy


def user_class(text: str) -> type[Policy]:
    """Load a policy class from `FILE.py:Class` or `package.module:Class`.

    Raises:
        ConfigError: missing file, module or class; it fails to load; or it is not a policy.
    """
    place, _, name = text.rpartition(":")
    if not place:
        raise ConfigError(f"policy {text}: name the class as well, such as {text}:MyPolicy")
    module = load_user_code(place, f"policy {text}", "Class")
    own: dict[str, type[Policy]] = {
        key: found
        for key, found in inspect.getmembers(module, inspect.isclass)
        if issubclass(found, Policy) and not inspect.isabstract(found)
    }
    if name not in own:
        if hasattr(module, name):
            raise ConfigError(
                f"policy {text}: {name} is not a policy; derive it from PackingPolicy or Policy "
                "and give it all of their abstract methods"
            )
        known = nearest(name, list(own)) if own else "it has no policy at all"
        raise ConfigError(f"policy {text}: no class {name} in {place}; {known}")
    return own[name]


OF_ENGINE: Mapping[str, bool] = {"sleep": False, "isolate": False}
"""Parameters that every policy has, and the engine uses."""
POLICIES: Mapping[str, str] = {
    "fifo": "wattloop.schedule.policies.fifo:Fifo",
    "backfill": "wattloop.schedule.policies.backfill:Backfill",
    "sjf": "wattloop.schedule.policies.sjf:Sjf",
    "pollux": "wattloop.schedule.policies.pollux:Pollux",
    "pollux-osdi21": "wattloop.schedule.policies.pollux_osdi21:PolluxOsdi21",
    "themis": "wattloop.schedule.policies.themis:Themis",
    "themis-nsdi20": "wattloop.schedule.policies.themis_nsdi20:ThemisNsdi20",
    "themis-as-printed": "wattloop.schedule.policies.themis:ThemisAsPrinted",
    "chronos": "wattloop.schedule.policies.chronos:Chronos",
    "zeus": "wattloop.schedule.policies.zeus:Zeus",
    "hades": "wattloop.schedule.policies.themis:Hades",
    "hades-as-printed": "wattloop.schedule.policies.themis:HadesAsPrinted",
    "aurachronos": "wattloop.schedule.policies.aurachronos:AuraChronos",
    "charon": "wattloop.schedule.policies.charon:Charon",
    "helios": "wattloop.schedule.policies.helios:Helios",
    "selene": "wattloop.schedule.policies.selene:Selene",
}
"""Name -> module and class, loaded on use."""


@dataclass(frozen=True, slots=True)
class PolicyCard:
    """Entry of the list of policies.

    Attributes:
        formula: score of jobs, if the policy has one.
        parameters: name -> default.
    """

    name: str
    summary: str
    formula: str
    parameters: Mapping[str, Any]


def policy_from(given: str | Mapping[str, Any]) -> Policy:
    """Create a policy from its name and parameters.

    Args:
        given: `zeus`, `pollux{age_weight: 0.2}`, `{pollux: {age_weight: 0.2}}`, `{name: pollux,
            age_weight: 0.2}`; instead of a name `FILE.py:Class` or `package.module:Class`.

    Raises:
        ConfigError: unknown policy or parameter, or a class that is not a policy.
    """
    name, parameters = _read(given)
    kind = _class(name)
    defaults = _defaults(kind)
    for key in parameters:
        if key not in defaults:
            known = nearest(key, list(defaults)) if defaults else "it has none"
            raise ConfigError(f"policy {name}: unknown parameter '{key}'; {known}")
    for key, default in defaults.items():
        if default is inspect.Parameter.empty and key not in parameters:
            raise ConfigError(f"policy {name}: give its {key}, as {name}{{{key}: VALUE}}")
    try:
        values = {key: _value(key, value, defaults[key]) for key, value in parameters.items()}
        policy = kind(**{key: value for key, value in values.items() if key not in OF_ENGINE})
        policy.sleeps = values.get("sleep", kind.sleeps)
        policy.isolates = values.get("isolate", kind.isolates)
    except (ConfigError, TypeError, ValueError) as error:
        raise ConfigError(f"policy {name}: {error}") from None
    policy.name = policy.name if name in POLICIES else _own_name(name, policy)
    if values:  # tells two settings of one policy apart
        said = ", ".join(f"{key}: {value}" for key, value in values.items())
        policy.name = f"{policy.name}{{{said}}}"
    return policy


def policies_from(given: str | Iterable[str | Mapping[str, Any]]) -> tuple[Policy, ...]:
    """Create several policies: `fifo,pollux{age_weight: 0.2},zeus`, or a list.

    Raises:
        ConfigError: as `policy_from`, or no policy, or a duplicate.
    """
    parts = split_policies(given) if isinstance(given, str) else list(given)
    found = tuple(policy_from(part) for part in parts)
    if not found:
        raise ConfigError(f"no policy is named; known are {', '.join(POLICIES)}")
    names = [policy.name for policy in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"policy {name} is given twice; name it once")
    return found


def split_policies(text: str) -> list[str]:
    """Split a list such as `fifo,pollux{age_weight: 0.2},zeus` into its policies."""
    parts, depth = [""], 0
    for character in text:
        depth += (character == "{") - (character == "}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def with_parameter(
    given: str | Mapping[str, Any], key: str, value: Any
) -> str | Mapping[str, Any] | None:
    """Add a parameter to a policy as written; None if it has no such parameter.

    Raises:
        ConfigError: unknown policy.
    """
    name, parameters = _read(given)
    if key not in _defaults(_class(name)):
        return None
    return {name: {**parameters, key: value}}


def policy_cards() -> list[PolicyCard]:
    """Return all shipped policies, in the order of the documentation."""
    return [_card(name, _class(name)) for name in POLICIES]


def _read(given: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    if isinstance(given, Mapping):
        rest = dict(given)
        if "name" in rest:
            return str(rest.pop("name")), {str(key): value for key, value in rest.items()}
        if len(rest) == 1:
            ((name, parameters),) = rest.items()
            return str(name), _mapping(str(name), parameters)
        raise ConfigError(
            f"policy {rest}: write its name, or name: {{parameter: value}}, such as "
            "pollux: {age_weight: 0.2}"
        )
    if not isinstance(given, str):
        raise ConfigError(f"policy {given!r}: write its name; known are {', '.join(POLICIES)}")
    name, brace, inside = given.strip().partition("{")
    if not brace:
        return name, {}
    try:
        return name.strip(), _mapping(name.strip(), yaml.safe_load(brace + inside))
    except yaml.YAMLError:
        raise ConfigError(
            f"policy {given}: parameters are written as {name.strip()}{{parameter: value}}"
        ) from None


def _mapping(name: str, parameters: Any) -> dict[str, Any]:
    if parameters is None:
        return {}
    if not isinstance(parameters, Mapping):
        raise ConfigError(f"policy {name}: parameters are written as {{parameter: value}}")
    return {str(key): value for key, value in parameters.items()}


def _class(name: str) -> type[Policy]:
    if name in POLICIES:
        module, _, attribute = POLICIES[name].partition(":")
        found: type[Policy] = getattr(importlib.import_module(module), attribute)
        return found
    if ":" in name or name.endswith(".py"):
        return user_class(name)
    hint = nearest(name.lower(), list(POLICIES))
    raise ConfigError(f"unknown policy '{name}'; {hint} (one of your own: FILE.py:Class)")


def _defaults(kind: type[Policy]) -> dict[str, Any]:
    """Return the parameters of a policy and their defaults; `empty` for required ones."""
    known = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found = inspect.signature(kind).parameters.values()
    return {**{each.name: each.default for each in found if each.kind in known}, **OF_ENGINE}


def _value(key: str, value: Any, default: Any) -> Any:
    """Convert a value to the type of its default."""
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ConfigError(f"{key} is {value!r}; write true or false")
    elif isinstance(default, float | int):
        try:
            found = float(value)  # YAML takes 1e-3 for a word
        except (TypeError, ValueError):
            found = math.nan
        if isinstance(value, bool) or not math.isfinite(found):
            raise ConfigError(f"{key} is {value!r}; give a number")
        if isinstance(default, int) and found != int(found):
            raise ConfigError(f"{key} is {value!r}; give a whole number")
        return type(default)(found)
    return value


def _own_name(given: str, policy: Policy) -> str:
    """Return the name of a user's policy, which must differ from all shipped names."""
    kind = type(policy)
    own = vars(policy).get("name") or vars(kind).get("name") or kind.__name__.lower()
    if own in POLICIES:
        raise ConfigError(
            f"policy {given}: is called {own}, as one of ours is; give its class another name"
        )
    return str(own)


def _card(name: str, kind: type[Policy]) -> PolicyCard:
    module = inspect.getmodule(kind)
    summary = (inspect.getdoc(module) or "").partition("\n")[0]
    formula = (inspect.getdoc(kind) or "").partition("\n")[0]
    return PolicyCard(name, summary, formula, _defaults(kind))
