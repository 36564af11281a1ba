"""Entry points of installed packages, read from their files.

`importlib.metadata` takes 30 ms and parses every installed package, which is most of what
setting
up a measurement may cost (ADR 0015).
"""

import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any

from wattloop.core.files import CLOSE_ON_EXEC


def entry_points(group: str) -> Iterator[tuple[str, str]]:
    """Return (name, `module:attribute`) of every entry point of `group`; the first on the path
    wins.
    """
    seen: set[str] = set()
    for folder in sys.path:
        try:
            entries = sorted(e.path for e in os.scandir(folder or ".") if _is_metadata(e.name))
        except OSError:
            continue
        for entry in entries:
            for name, target in _listed(f"{entry}/entry_points.txt", group):
                if name not in seen:
                    seen.add(name)
                    yield name, target


def loaded(target: str) -> Any:
    """Import the object that `module:attribute` names."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _is_metadata(name: str) -> bool:
    return name.endswith((".dist-info", ".egg-info"))


def _listed(path: str, group: str) -> Iterator[tuple[str, str]]:
    # Plain system calls: a hundred packages are looked at for each measured program.
    try:
        file = os.open(path, os.O_RDONLY | CLOSE_ON_EXEC)
    except OSError:
        return
    try:
        data = os.read(file, os.fstat(file).st_size)
    finally:
        os.close(file)
    if group.encode() not in data:
        return
    text = data.decode(errors="replace")
    inside = False
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            inside = line == f"[{group}]"
        elif inside and "=" in line:
            name, _, target = line.partition("=")
            yield name.strip(), target.strip()
