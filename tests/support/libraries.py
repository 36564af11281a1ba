"""Optional libraries that are imported when a test first uses them.

`pytest.importorskip` at the top of a file imports a library while tests are collected, in every
worker, even one that does not run the file.
"""

import importlib
import importlib.util
from typing import Any

import pytest


class _Library:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        # pytest inspects every name of a module for fixtures during collection
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)


def library(name: str, *, reason: str) -> Any:
    """Return a library that is not imported yet, or skip the tests of the file."""
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        pytest.skip(reason, allow_module_level=True)
    return _Library(name)
