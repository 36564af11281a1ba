"""Cache of placement options in the user's cache folder.

A campaign starts many processes that need the same few tables. Predicting them takes some tenths of
a second, reading them a millisecond.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from wattloop.core.ownership import is_trusted
from wattloop.schedule.estimates.oracle import Factors, Oracle, PlacementOptions
from wattloop.schedule.jobs.kind import JobKind

MOST = 1000


"""Most cached tables; the least recently used are removed first."""


TYPES = {"spread": np.bool_, "type_index": np.int64, "gpus": np.int64, "batch": np.int64}


"""Types of the columns that are not floats."""


class CachedOracle(Oracle):
    """Oracle that caches the options of another oracle in memory and on disk.

    Args:
        inner: wrapped oracle. Kinds without a fingerprint are cached in memory only.
        folder: folder of the files; by default the user's cache folder.
    """

    def __init__(self, inner: Oracle, folder: Path | None = None) -> None:
        self.inner = inner
        self.name = inner.name
        self._folder = folder if folder is not None else options_folder()
        self._options: dict[JobKind, PlacementOptions] = {}

    def options(self, kind: JobKind) -> PlacementOptions:
        """Return the options of the inner oracle, from the cache if possible."""
        if kind not in self._options:
            self._options[kind] = self._kept_or_asked(kind)
        return self._options[kind]

    def factors(self, job: int, kind: JobKind) -> Factors | None:
        return self.inner.factors(job, kind)

    def factors_of(self, jobs: Sequence[int], kind: JobKind) -> Factors | None:
        return self.inner.factors_of(jobs, kind)

    def fingerprint(self, kind: JobKind) -> Sequence[str] | None:
        return self.inner.fingerprint(kind)

    @property
    def power_error(self) -> float:
        return self.inner.power_error

    @property
    def time_error(self) -> float:
        return self.inner.time_error

    def _kept_or_asked(self, kind: JobKind) -> PlacementOptions:
        parts = self.inner.fingerprint(kind)
        if parts is None:
            return self.inner.options(kind)
        digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
        path = self._folder / f"{digest[:32]}.json"
        found = _read(path)
        if found is None:
            found = self.inner.options(kind)
            # without a writable cache, the campaign only takes longer
            with contextlib.suppress(OSError):
                _write(found, path)
        return found


def options_folder() -> Path:
    """Return `$XDG_CACHE_HOME/wattloop/options`, by default in `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "wattloop" / "options"


def _read(path: Path) -> PlacementOptions | None:
    """Read the options of a file; None when it is missing, broken or another user's."""
    if not path.exists() or not is_trusted(path):
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        columns: dict[str, Any] = {
            name: np.array(values[name], dtype=TYPES.get(name, np.float64)) for name in _columns()
        }
        if len({len(column) for column in columns.values()}) != 1:
            return None
        options = PlacementOptions(**columns, source=str(values["source"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    with contextlib.suppress(OSError):  # a file of root is read without updating its time
        os.utime(path)
    return options


def _write(options: PlacementOptions, path: Path) -> None:
    values = {name: getattr(options, name).tolist() for name in _columns()}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps({**values, "source": options.source}), encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    kept = sorted(path.parent.glob("*.json"), key=lambda each: each.stat().st_mtime)
    for each in kept[:-MOST]:
        each.unlink(missing_ok=True)


def _columns() -> list[str]:
    return [each.name for each in fields(PlacementOptions) if each.name != "source"]
