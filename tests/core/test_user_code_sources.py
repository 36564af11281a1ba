"""Promises of a user's source files: all files of a module, and no installed ones."""

import importlib
from pathlib import Path

import pytest

from wattloop.core.user_code import load_user_code, user_sources


def test_imports_are_followed_within_the_folder(tmp_path: Path) -> None:
    """Direct and indirect imports, of packages and within functions, but no unused files."""
    files = {
        "mine.py": "import json\nimport one\ndef later():\n    from pack.deep import two\n",
        "one.py": "from pack import three\n",
        "pack/__init__.py": "",
        "pack/three.py": "from . import four\nfrom .deep import two\n",
        "pack/four.py": "",
        "pack/deep/__init__.py": "from ..five import X\n",
        "pack/deep/two.py": "",
        "pack/five.py": "X = 1\n",
        "unused.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    module = load_user_code(f"{tmp_path}/mine.py", "policy x", "Class")
    found = [str(path.relative_to(tmp_path)) for path in user_sources(module)]
    assert found == sorted(set(files) - {"unused.py"})


def test_of_installed_code_only_the_own_package_counts() -> None:
    """Other packages in site-packages do not count."""
    typer = pytest.importorskip("typer", reason="typer is not installed")
    found = user_sources(importlib.import_module("typer.main"))
    folder = Path(typer.__file__).parent
    assert folder / "main.py" in found
    assert all(path.is_relative_to(folder) for path in found)


def test_a_module_without_a_file_has_no_sources() -> None:
    """Modules built into Python are an example."""
    assert user_sources(importlib.import_module("sys")) == []
