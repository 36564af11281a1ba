"""Write docs/map.md: every package and module with the first sentence of its docstring."""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "wattloop"
PAGE = ROOT / "docs" / "map.md"
HEAD = """# Where things are

One line per package and module, in the order of the layers: each package imports only from packages
below it in this list. Written by `python scripts/make_map.py` from the docstrings; a test keeps it
current.

The thesis is Nana Tchakouté's; the other names are of [source documents](sources.md) as well.
"""


def main() -> int:
    PAGE.write_text(page_text(), "utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


def page_text() -> str:
    return HEAD + "".join(_package(SOURCE / name, depth=2) for name in _layers())


def _layers() -> list[str]:
    """Return the top-level packages, highest layer first, as import-linter checks them."""
    import tomllib

    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    contract = settings["tool"]["importlinter"]["contracts"][0]
    return [name.strip() for layer in contract["layers"] for name in layer.split("|")]


def _package(folder: Path, *, depth: int) -> str:
    title = folder.relative_to(SOURCE).as_posix()
    lines = [f"\n{'#' * min(depth, 4)} {title}/\n\n{_first_line(folder / '__init__.py')}\n"]
    modules = sorted(path for path in folder.glob("*.py") if path.stem != "__init__")
    if modules:
        lines.append("\n")
    lines += [f"- `{path.stem}`: {_first_line(path)}\n" for path in modules]
    for inner in sorted(path.parent for path in folder.glob("*/__init__.py")):
        lines.append(_package(inner, depth=depth + 1))
    return "".join(lines)


def _first_line(path: Path) -> str:
    """Return the first paragraph of a module's docstring on one line."""
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return " ".join(text.partition("\n\n")[0].split())


if __name__ == "__main__":
    sys.exit(main())
