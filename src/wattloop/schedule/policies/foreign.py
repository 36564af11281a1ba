"""A policy of anybody's: `FILE.py:Class` or `package.module:Class`."""

import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType

from wattloop.core.errors import ConfigError
from wattloop.core.user_path import user_path
from wattloop.hardware.lined_yaml import nearest
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
    module = _from_file(place, text) if place.endswith(".py") else _imported(place, text)
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


def _from_file(place: str, text: str) -> ModuleType:
    path = user_path(place).absolute()
    if not path.is_file():
        raise ConfigError(f"policy {text}: no file {path}")
    name = f"wattloop_policy_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # a file that ends in .py has both
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses of the file look it up
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code may raise anything
        raise _failed(text, str(path), error) from None
    return module


def _imported(place: str, text: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:  # as `python -m` does: a package beside the user is found
        sys.path.insert(0, here)
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is not None and place.startswith(error.name):
            raise ConfigError(
                f"policy {text}: no module {error.name} is installed or in this folder; a file is "
                f"named as {place.replace('.', '/')}.py:Class"
            ) from None
        raise _failed(text, place, error) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code may raise anything
        raise _failed(text, place, error) from None


def _failed(text: str, what: str, error: BaseException) -> ConfigError:
    return ConfigError(
        f"policy {text}: {what} failed with {type(error).__name__}: {error}; run it with Python "
        "to see where"
    )
