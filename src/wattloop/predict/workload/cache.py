"""Cache of traces in the user's cache folder.

The key of a trace covers everything that determines it: the configuration or the structure and
source of the model, shapes, precision, optimizer, rules of the user, and the versions of torch and
Wattloop. A model without readable source is not cached.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from wattloop.core.errors import ConfigError
from wattloop.core.ownership import is_trusted
from wattloop.predict.workload.files import VERSION, load_workload, save_workload
from wattloop.predict.workload.workload import Workload

_MOST = 500
"""Largest number of traces; the least recently used are removed."""


COUNTED_BY = "2"
"""Version of the counting rules; a new one invalidates older traces: 2 has cuDNN's workspaces in
the memory of convolutions.
"""


def kept_or_made(
    parts: list[str] | None, make: Callable[[], Workload], folder: Path | None = None
) -> Workload:
    """Return the cached workload for the key `parts`, else make and cache one.

    Without parts the key is unknown, so the workload is made. A broken file is replaced; a folder
    that cannot be written is ignored.
    """
    if parts is None:
        return make()
    folder = cache_folder() if folder is None else folder
    digest = hashlib.sha256("\0".join([str(VERSION), COUNTED_BY, *parts]).encode()).hexdigest()
    path = folder / f"{digest[:32]}.json.gz"
    if path.is_file() and is_trusted(path):
        try:
            workload = load_workload(path)
        except ConfigError:
            path.unlink(missing_ok=True)
        else:
            path.touch()
            return workload
    workload = make()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_workload(workload, path)
        _forget_old(folder)
    except (OSError, ConfigError):
        return workload
    return workload


def cache_folder() -> Path:
    """Return `$XDG_CACHE_HOME/wattloop/workloads`, by default in `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "wattloop" / "workloads"


def _forget_old(folder: Path) -> None:
    files = sorted(folder.glob("*.json.gz"), key=lambda each: each.stat().st_mtime)
    for each in files[:-_MOST]:
        each.unlink(missing_ok=True)
