"""Code of the user's by its name: `FILE.py` or `package.module`."""

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from wattloop.core.errors import ConfigError
from wattloop.core.user_path import user_path

__all__ = ["check_user_code", "forbid_user_code", "load_user_code"]

_forbidden = ""


def forbid_user_code(reason: str) -> None:
    """Refuse user code in this process from now on: a server reads names that others wrote."""
    global _forbidden  # noqa: PLW0603 - a property of the process
    _forbidden = reason


def check_user_code(asked: str) -> None:
    """Refuse where this process runs no code or configuration of the user.

    Raises:
        ConfigError: `asked`, and why.
    """
    if _forbidden:
        raise ConfigError(f"{asked}: {_forbidden}")


def load_user_code(place: str, asked: str, wanted: str) -> ModuleType:
    """The module, run if it is a file: imports of files beside it work as with `python FILE.py`.

    Args:
        place: a file that ends in `.py`, or the name of a module.
        asked: what errors begin with: `policy mine.py:Mine`.
        wanted: what is named after the colon: `Class`.

    Raises:
        ConfigError: there is no such thing, it fails, or this process runs no user code.
    """
    check_user_code(asked)
    if not place.endswith(".py"):
        return _imported(place, asked, wanted)
    path = user_path(place)
    if not path.is_file():
        raise ConfigError(f"{asked}: no file {path}")
    return _from_file(path.absolute(), asked)


def _from_file(path: Path, asked: str) -> ModuleType:
    # by its place, too: files of one name in two folders are two modules
    place = hashlib.blake2s(str(path.parent).encode("utf-8", "surrogateescape")).hexdigest()[:8]
    name = f"wattloop_user_{path.stem}_{place}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # a file that ends in .py has both
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles of the file look it up
    _first_on_path(path.parent)
    _forget_namesakes(path.parent)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code may raise anything
        raise _failed(asked, str(path), error) from None
    return module


def _imported(place: str, asked: str, wanted: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:  # as `python -m` does: a package beside the user is found
        sys.path.insert(0, here)
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is not None and place.startswith(error.name):
            raise ConfigError(
                f"{asked}: no module {error.name} is installed or in this folder; a file is named "
                f"as {place.replace('.', '/')}.py:{wanted}"
            ) from None
        raise _failed(asked, place, error) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code may raise anything
        raise _failed(asked, place, error) from None


def _first_on_path(folder: Path) -> None:
    if str(folder) in sys.path:
        sys.path.remove(str(folder))
    sys.path.insert(0, str(folder))


def _forget_namesakes(folder: Path) -> None:
    """Modules of other folders that were imported under the name of a file beside this one."""
    for path in folder.glob("*.py"):
        known = getattr(sys.modules.get(path.stem), "__file__", None)
        # what Python or an installed library brings is not pushed aside
        if known and Path(known).parent != folder and _is_users(Path(known)):
            del sys.modules[path.stem]


def _is_users(path: Path) -> bool:
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    return not installed and not path.is_relative_to(sys.base_prefix)


def _failed(asked: str, what: str, error: BaseException) -> ConfigError:
    return ConfigError(
        f"{asked}: {what} failed with {type(error).__name__}: {error}; run it with Python to see "
        "where"
    )
