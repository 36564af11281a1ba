"""Waiting jobs as rows of arrays: quick to add, to remove, and to look at all at once."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.jobs.table import JobTable

__all__ = ["Columns", "Rows"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
FIRST_CAPACITY = 64


class Columns(NamedTuple):
    """Waiting jobs in no particular order: views, not to be kept beyond the round."""

    job: Ints
    kind: Ints
    user: Ints
    priority: Ints
    arrival_s: Floats
    deadline_s: Floats
    work: Floats


class Rows:
    """Columns that grow by doubling; a removed row is filled with the last one.

    Args:
        jobs: what is copied from.
        shapes: rows of each cost table.

    Attributes:
        costs: name of an objective -> cost of every waiting job on each shape, (shapes, capacity).
    """

    def __init__(self, jobs: JobTable, shapes: int) -> None:
        self._jobs, self._shapes = jobs, shapes
        self._row: dict[int, int] = {}
        self._columns = _empty_columns(FIRST_CAPACITY)
        self.costs: dict[str, Floats] = {}

    def __len__(self) -> int:
        return len(self._row)

    def columns(self) -> Columns:
        """All rows, as views."""
        used = len(self._row)
        return Columns._make([column[:used] for column in self._columns])

    def new_costs(self) -> Floats:
        """A cost table with room for every row, of which none is known."""
        return np.full((self._shapes, len(self._columns.job)), np.nan)

    def append(self, work: Mapping[int, float]) -> Ints:
        """Jobs with the samples they have still to train on; their rows."""
        first, last = len(self._row), len(self._row) + len(work)
        if last > len(self._columns.job):
            self._grow(max(last, 2 * len(self._columns.job)))
        columns, table = self._columns, self._jobs
        if len(work) == 1:  # most often; slices and arrays would take five times as long
            ((job, samples),) = work.items()
            values = (job, table.kind[job], table.user[job], table.priority[job])
            times_s = (table.arrival_s[job], table.deadline_s[job])
            for column, value in zip(columns, (*values, *times_s, samples), strict=True):
                column[first] = value
            self._row[job] = first
            return np.array([first])
        rows, new = slice(first, last), np.fromiter(work, dtype=np.int64, count=len(work))
        columns.job[rows] = new
        columns.kind[rows] = table.kind[new]
        columns.user[rows] = table.user[new]
        columns.priority[rows] = table.priority[new]
        columns.arrival_s[rows] = table.arrival_s[new]
        columns.deadline_s[rows] = table.deadline_s[new]
        columns.work[rows] = np.fromiter(work.values(), dtype=float, count=len(work))
        self._row.update(zip(work, range(first, last), strict=True))
        return np.arange(first, last)

    def remove(self, job: int) -> None:
        """A job goes; the last row takes its place."""
        row, last = self._row.pop(job), len(self._row)
        if row != last:
            for column in self._columns:
                column[row] = column[last]
            for costs in self.costs.values():
                costs[:, row] = costs[:, last]
            self._row[int(self._columns.job[row])] = row

    def _grow(self, capacity: int) -> None:
        used = len(self._row)
        grown = _empty_columns(capacity)
        for old, new in zip(self._columns, grown, strict=True):
            new[:used] = old[:used]
        self._columns = grown
        for objective, costs in self.costs.items():
            wider = self.new_costs()
            wider[:, :used] = costs[:, :used]
            self.costs[objective] = wider


def _empty_columns(capacity: int) -> Columns:
    types = (np.int64,) * 4 + (np.float64,) * 3
    return Columns._make(np.empty(capacity, dtype=each) for each in types)
