"""The few combinations that the rows of several columns make."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Combined"]

WIDEST = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class Combined:
    """Distinct rows of some columns of whole numbers.

    Attributes:
        rows: each combination.
        counts: how many rows are of it.
        of_job: which combination each row is, as an index into `rows`.
    """

    rows: list[tuple[int, ...]]
    counts: list[int]
    of_job: NDArray[np.int64]

    @classmethod
    def of(cls, *columns: NDArray[Any]) -> "Combined":
        """Ordered by the columns, the first one first."""
        of_job = np.zeros(len(columns[0]), np.int64)
        for column in columns:
            place, count = _places(column)
            of_job, _ = _places(of_job * count + place)
        counts = np.bincount(of_job)
        one = np.empty(len(counts), np.int64)
        one[of_job] = np.arange(len(of_job))  # any row of a combination stands for it
        rows = [tuple(int(column[row]) for column in columns) for row in one.tolist()]
        return cls(rows, counts.tolist(), of_job)


def _places(column: NDArray[Any]) -> tuple[NDArray[np.int64], int]:
    """Each value's place among the distinct ones, in their order, and how many there are."""
    if not len(column):
        return np.zeros(0, np.int64), 0
    low, high = int(column.min()), int(column.max())
    if high - low >= WIDEST:
        values, place = np.unique(column, return_inverse=True)
        return place.astype(np.int64), len(values)
    # counting is ten times quicker than sorting
    seen = np.bincount(column.astype(np.int64) - low) > 0
    places = np.cumsum(seen) - 1
    return places[column.astype(np.int64) - low], int(seen.sum())
