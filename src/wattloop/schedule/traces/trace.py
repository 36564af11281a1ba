"""What a trace says of its jobs, and nothing it does not say."""

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Coded:
    """A column of words: few different ones, each row pointing at one.

    Attributes:
        values: the words, in the order they were met.
        codes: index into `values` per row, -1 where the trace says nothing.
    """

    values: tuple[str, ...]
    codes: NDArray[np.int32]

    def take(self, rows: NDArray[np.int64]) -> "Coded":
        """Those rows, in that order, with the words that are left."""
        return Coded(self.values, self.codes[rows]).used()

    def used(self) -> "Coded":
        """Without words that no row points at: a user without jobs is none."""
        counts = np.bincount(self.codes + 1, minlength=len(self.values) + 1)[1:]
        if counts.all():
            return self
        values = tuple(v for v, n in zip(self.values, counts.tolist(), strict=True) if n)
        codes = np.where(counts > 0, np.cumsum(counts > 0) - 1, -1)
        return Coded(values, np.append(codes, -1).astype(np.int32)[self.codes])


@dataclass(frozen=True, eq=False)
class Trace:
    """Jobs of a real cluster in order of arrival; what is missing is NaN, -1 or None.

    Attributes:
        source: the file.
        arrival_s: when each was submitted, counted from the first.
        gpus: how many it asked for, 1 or more.
        duration_s: how long it ran; NaN where only `samples` says how much there was to do.
        samples: how many it trained on; None where no row says.
        batch: samples per GPU and step; None where no row says.
        deadline_s: by when it had to be done, on the clock of `arrival_s`; None where no row says.
        priority: None where no row says.
        user, model, gpu_type: None where no row says.
        names: what the trace calls its jobs; empty when it does not, or for very many.
        notes: what was left out and done to the rows, in words.
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
        """Those rows, in that order; they are to be in order of arrival."""
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
