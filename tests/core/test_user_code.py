"""Promises of code loaded by name: loaded as Python would, errors in a sentence, no mixed
modules.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from wattloop.core.errors import ConfigError
from wattloop.core.user_code import load_user_code


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove the loaded modules after the test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def written(folder: Path, **files: str) -> Path:
    """Write files into a folder and return its path."""
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def test_a_file_imports_modules_of_its_folder(tmp_path: Path) -> None:
    """Folders with files of the same names do not share modules."""
    found = []
    for number in (1, 2):
        folder = written(
            tmp_path / str(number),
            mine="from a_helper import VALUE\nclass Mine: pass\n",
            a_helper=f"VALUE = {number}\n",
        )
        found.append(load_user_code(f"{folder}/mine.py", "policy x", "Class"))
    assert [module.VALUE for module in found] == [1, 2]
    assert found[0].__name__ != found[1].__name__
    assert sys.modules[found[0].Mine.__module__] is found[0]


def test_a_file_does_not_replace_a_library(tmp_path: Path) -> None:
    """A file next to it may have the name of any library."""
    import json

    folder = written(tmp_path / "x", mine="import json\n", json="raise RuntimeError\n")
    load_user_code(f"{folder}/mine.py", "policy x", "Class")
    assert sys.modules["json"] is json


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("none.py", "model m: no file none.py"),
        ("no.such.module", "no module no is installed .*as no/such/module.py:factory"),
        ("bad.py", r"bad\.py failed with ZeroDivisionError: .*; run it with Python"),
        ("gone.py", r"gone\.py failed with SystemExit: 3"),
    ],
)
def test_a_failed_load_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, said: str
) -> None:
    """The error is a sentence that begins with the requested name, and the program continues."""
    written(tmp_path, bad="1 / 0\n", gone="raise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=said):
        load_user_code(place, "model m", "factory")
