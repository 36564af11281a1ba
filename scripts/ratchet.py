"""Sizes and names of the tree that may only shrink: `make ratchet` fails when one grows.

The limits are in `[tool.wattloop.ratchet]` of pyproject.toml. Lower a limit when the tree is
below it.
"""

import ast
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "wattloop"
# Words and phrases that STYLE in CONTRIBUTING.md replaces by plainer ones.
BANNED = re.compile(
    r"\b(nobody|whoever|somebody|anew|beside)\b|\bis no (?!longer|more)[a-z]+", re.IGNORECASE
)


def main() -> int:
    limits = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["wattloop"][
        "ratchet"
    ]
    found = measure_tree()
    print(f"{'what':<37} {'now':>8} {'limit':>8}")
    for name, value in found.items():
        mark = "  grew" if value > limits[name] else ""
        print(f"{name.replace('_', ' '):<37} {value:>8} {limits[name]:>8}{mark}")
    grown = [name for name, value in found.items() if value > limits[name]]
    if grown:
        print(
            "The tree may only get simpler: merge, rename or remove instead of adding to "
            f"{', '.join(grown)}. Where growth is right, raise the limit in pyproject.toml and "
            "give the reason in the commit.",
            file=sys.stderr,
        )
    return 1 if grown else 0


def measure_tree() -> Mapping[str, int]:
    texts = {path: path.read_text("utf-8") for path in SOURCE.rglob("*.py")}
    modules = [path for path in texts if path.name != "__init__.py"]
    folders = Counter(path.parent for path in modules)
    classes = Counter(
        node.name
        for text in texts.values()
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    tests = [path for folder in ("tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    return {
        "modules": len(modules),
        "lines": sum(text.count("\n") for text in texts.values()),
        "fullest_folder": max(folders.values()),
        "modules_under_60_lines": sum(texts[path].count("\n") < 60 for path in modules),
        "class_names_with_several_meanings": sum(count > 1 for count in classes.values()),
        "banned_words_in_src": count_banned_words(texts),
        "banned_words_in_docs": count_banned_words(pages),
        "banned_words_in_tests_and_benchmarks": count_banned_words(tests),
        "readme_lines": (ROOT / "README.md").read_text("utf-8").count("\n"),
    }


def count_banned_words(files: Iterable[Path]) -> int:
    return sum(len(BANNED.findall(file.read_text("utf-8"))) for file in files)


if __name__ == "__main__":
    sys.exit(main())
