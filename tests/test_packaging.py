"""Promises of the package: a wheel has every data file, and messages name extras that exist."""

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

from tests.conftest import LONGEST_FIRST

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def test_every_data_file_is_in_the_wheel() -> None:
    """Templates, tables and scripts beside the code match a pattern of the package's data."""
    package = ROOT / "src" / "wattloop"
    stated = PROJECT["tool"]["setuptools"]["package-data"]["wattloop"]
    patterns = [each.removeprefix("**/") for each in stated]
    left_out = [
        str(each.relative_to(package))
        for each in package.rglob("*")
        if each.is_file()
        and each.suffix not in (".py", ".pyc")
        and not any(fnmatch(each.name, pattern) for pattern in patterns)
    ]
    assert left_out == []


def test_every_extra_that_is_named_exists() -> None:
    """`pip install 'wattloop[EXTRA]'`, as messages and pages say it, installs something."""
    extras = set(PROJECT["project"]["optional-dependencies"])
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    named = {
        name
        for page in pages
        for group in re.findall(r"wattloop\[([a-z,]+)\]", page.read_text("utf-8"))
        for name in group.split(",")
    }
    assert {"torch", "report", "serve"} <= named
    assert named - {"extra"} <= extras


def test_files_that_are_begun_first_exist() -> None:
    """A file that was renamed would be begun last, and the other workers would wait for it."""
    assert [path for path in LONGEST_FIRST if not (ROOT / path).is_file()] == []
