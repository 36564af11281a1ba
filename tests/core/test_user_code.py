"""Promises of code by its name: loaded as Python would, faults in a sentence, nothing mixed up."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from wattloop.core.errors import ConfigError
from wattloop.core.user_code import load_user_code


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is loaded here is forgotten."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def written(folder: Path, **files: str) -> Path:
    """Files of a folder; the path of it."""
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def test_a_file_finds_what_lies_beside_it(tmp_path: Path) -> None:
    """Also when another folder has files of the same names: neither gets the other's."""
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


def test_a_file_does_not_push_a_library_aside(tmp_path: Path) -> None:
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
def test_what_cannot_be_loaded_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, said: str
) -> None:
    """In a sentence that begins with what was asked for; the program goes on."""
    written(tmp_path, bad="1 / 0\n", gone="raise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=said):
        load_user_code(place, "model m", "factory")
