"""Trace: the recorded jobs of a real cluster, without any assumption."""

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Coded:
    """Dictionary-encoded column of words.

    Attributes:
        values: the words, in the order of first occurrence.
        codes: index into `values` per row, -1 where the trace has no value.
    """

    values: tuple[str, ...]
    codes: NDArray[np.int32]

    def take(self, rows: NDArray[np.int64]) -> "Coded":
        return Coded(self.values, self.codes[rows]).used()

    def used(self) -> "Coded":
        counts = np.bincount(self.codes + 1, minlength=len(self.values) + 1)[1:]
        if counts.all():
            return self
        values = tuple(v for v, n in zip(self.values, counts.tolist(), strict=True) if n)
        codes = np.where(counts > 0, np.cumsum(counts > 0) - 1, -1)
        return Coded(values, np.append(codes, -1).astype(np.int32)[self.codes])


@dataclass(frozen=True, eq=False)
class Trace:
    """Jobs of a real cluster in order of arrival; missing values are NaN, -1 or None.

    Attributes:
        arrival_s: submission of each job, relative to the first.
        gpus: requested GPUs, 1 or more.
        duration_s: run time; NaN where only `samples` gives the work.
        samples: samples to train on; None without any value.
        batch: samples per GPU and step; None without any value.
        deadline_s: deadline on the clock of `arrival_s`; None without any value.
        priority: None without any value.
        user, model, gpu_type: None without any value.
        names: names of jobs; empty without names or for very many jobs.
        notes: rows left out and changes, for people.
    """

    source: str
    arrival_s: Floats
    gpus: NDArray[np.int64]
    duration_s: Floats
    samples: Floats | None = None
    batch: Floats | None = None
    deadline_s: Floats | None = None
    priority: Floats | None = None
    user: Coded | None = None
    model: Coded | None = None
    gpu_type: Coded | None = None
    names: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.arrival_s)

    def take(self, rows: NDArray[np.int64], note: str = "") -> "Trace":
        """Return these rows, which must be in order of arrival."""
        taken: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, np.ndarray):
                taken[each.name] = value[rows]
            elif isinstance(value, Coded):
                taken[each.name] = value.take(rows)
        if self.names:
            taken["names"] = tuple(self.names[row] for row in rows.tolist())
        if note:
            taken["notes"] = (*self.notes, note)
        return replace(self, **taken)
