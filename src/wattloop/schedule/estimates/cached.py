"""Cache of placement options in the user's cache folder.

A campaign starts many processes that need the same few tables. Predicting them takes some tenths of
a second, reading them a millisecond.
"""

import json
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from wattloop.core.cache import FileCache
from wattloop.core.files import cache_folder
from wattloop.schedule.estimates.oracle import Factors, Oracle, PlacementOptions
from wattloop.schedule.jobs.kind import JobKind

MOST = 1000
"""Most cached tables; the least recently used are removed first."""
TYPES = {"spread": np.bool_, "type_index": np.int64, "gpus": np.int64, "batch": np.int64}
"""Types of the columns that are not floats."""


class CachedOracle(Oracle):
    """Oracle that caches the options of another oracle in memory and on disk.

    Kinds without a fingerprint are cached in memory only.
    """

    def __init__(self, inner: Oracle, folder: Path | None = None) -> None:
        self.inner = inner
        self.name = inner.name
        self._files = FileCache(
            cache_folder("options") if folder is None else folder,
            suffix=".json",
            most=MOST,
            load=_load,
            dump=_dump,
        )
        self._options: dict[JobKind, PlacementOptions] = {}

    def options(self, kind: JobKind) -> PlacementOptions:
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
        return self._files.get(parts, lambda: self.inner.options(kind))


def _load(data: bytes) -> PlacementOptions:
    values = json.loads(data)
    columns: dict[str, Any] = {
        name: np.array(values[name], dtype=TYPES.get(name, np.float64)) for name in _columns()
    }
    if len({len(column) for column in columns.values()}) != 1:
        raise ValueError("columns of different lengths")
    return PlacementOptions(**columns, source=str(values["source"]))


def _dump(options: PlacementOptions) -> bytes:
    values = {name: getattr(options, name).tolist() for name in _columns()}
    return json.dumps({**values, "source": options.source}).encode()


def _columns() -> list[str]:
    return [each.name for each in fields(PlacementOptions) if each.name != "source"]
