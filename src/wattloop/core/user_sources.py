"""Files that a module of the user's is made of: itself, and what it imports of its own folder."""

import ast
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

__all__ = ["user_sources"]

INSTALLED = ("site-packages", "dist-packages")


def user_sources(module: ModuleType) -> list[Path]:
    """In a fixed order, the module's own file among them; empty where it has none.

    Read from the text of the files, not from what is loaded: an import within a function counts.
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
    """Dotted names that a file imports, as seen from the root."""
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
    """The module of this name and the packages it is in, where they are below the root."""
    place = root
    for part in name.split("."):
        place /= part
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            if part and path.is_file():
                yield path
