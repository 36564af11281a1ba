"""Code that the user names: `FILE.py` or `package.module`."""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path

INSTALLED = ("site-packages", "dist-packages")


def user_sources(module: ModuleType) -> list[Path]:
    """Return source files in a fixed order, including the module's own; empty where it has none.

    Read from the text of the files, not from loaded modules: an import within a function counts.
    """
    file = getattr(module, "__file__", None)
    if file is None:
        return []
    first = Path(file).absolute()
    parts = module.__name__.split(".")
    is_package = first.name == "__init__.py"
    root = first.parents[len(parts) - (0 if is_package else 1)]
    only = parts[0] if root.name in INSTALLED else None  # of what is installed, its own package
    found: set[Path] = set()
    waiting = [first]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        names = (name for name in _imports(path, root) if only in (None, name.split(".")[0]))
        waiting += [file for name in names for file in _files(name, root)]
    return sorted(found)


def _imports(path: Path, root: Path) -> Iterator[str]:
    """Return dotted names that a file imports, as seen from the root."""
    import ast

    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    package = path.parent.relative_to(root).parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - (node.level - 1)] if node.level else ()
            base = ".".join((*above, *filter(None, [node.module])))
            yield base
            yield from (f"{base}.{alias.name}".lstrip(".") for alias in node.names)


def _files(name: str, root: Path) -> Iterator[Path]:
    """Return the module of this name and its packages, where they are below the root."""
    place = root
    for part in name.split("."):
        place /= part
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            if part and path.is_file():
                yield path


_forbidden = ""


def forbid_user_code(reason: str) -> None:
    """Refuse user code in this process from now on: a server reads names that others wrote."""
    global _forbidden  # noqa: PLW0603 - a property of the process
    _forbidden = reason


def check_user_code(asked: str) -> None:
    """Raise where this process may not run code or configuration of the user.

    Raises:
        ConfigError: `asked`, and why.
    """
    if _forbidden:
        raise ConfigError(f"{asked}: {_forbidden}")


def load_user_code(place: str, asked: str, wanted: str) -> ModuleType:
    """Import the module, or run the file: imports of files next to it work as with `python
    FILE.py`.

    Args:
        place: a file that ends in `.py`, or the name of a module.
        asked: what errors begin with: `policy mine.py:Mine`.
        wanted: what is named after the colon: `Class`.

    Raises:
        ConfigError: it does not exist, it fails, or this process runs no user code.
    """
    check_user_code(asked)
    if not place.endswith(".py"):
        return _imported(place, asked, wanted)
    path = user_path(place)
    if not path.is_file():
        raise ConfigError(f"{asked}: no file {path}")
    return _from_file(path.absolute(), asked)


def _from_file(path: Path, asked: str) -> ModuleType:
    import hashlib

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
    if here not in sys.path:  # as `python -m` does: a package in the working directory is found
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
    """Unload modules of other folders that have the name of a file next to this one."""
    for path in folder.glob("*.py"):
        known = getattr(sys.modules.get(path.stem), "__file__", None)
        # modules of Python or of an installed library are not replaced
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
