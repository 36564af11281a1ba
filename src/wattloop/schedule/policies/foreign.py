"""A policy of anybody's: `FILE.py:Class` or `package.module:Class`."""

import inspect

from wattloop.core.errors import ConfigError
from wattloop.core.user_code import load_user_code
from wattloop.core.yaml_spec import nearest
from wattloop.schedule.policies.policy import Policy

__all__ = ["foreign_class"]


def foreign_class(text: str) -> type[Policy]:
    """The class that is named so.

    Raises:
        ConfigError: no such file, module or class; it fails to load; or it is no policy.
    """
    place, _, name = text.rpartition(":")
    if not place:
        raise ConfigError(f"policy {text}: name the class as well, such as {text}:MyPolicy")
    module = load_user_code(place, f"policy {text}", "Class")
    own: dict[str, type[Policy]] = dict(inspect.getmembers(module, _is_policy))
    if name not in own:
        if hasattr(module, name):
            raise ConfigError(
                f"policy {text}: {name} is no policy; derive it from PackingPolicy or Policy and "
                "give it all of their abstract methods"
            )
        known = nearest(name, list(own)) if own else "it has no policy at all"
        raise ConfigError(f"policy {text}: no class {name} in {place}; {known}")
    return own[name]


def _is_policy(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, Policy) and not inspect.isabstract(found)
