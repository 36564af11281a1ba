"""Rows that an earlier process wrote: as many as it takes to go on from them."""

import math
from collections.abc import Sequence

from wattloop.store.journal import SampleBlock

__all__ = ["chosen_rows"]

ROWS = 2_000
"""Enough for totals, holes and edges; a week has 600,000."""
Row = tuple[float, Sequence[float]]


def chosen_rows(blocks: Sequence[SampleBlock]) -> list[Row]:
    """Some of a journal's rows: the first, the last, those around a new beginning, every n-th."""
    rows: list[Row] = []
    for block in blocks:
        if block.feed == 0:
            width = block.width
            rows += [
                (time_s, block.values[i * width : (i + 1) * width])
                for i, time_s in enumerate(block.times_s)
            ]
    stride = max(1, len(rows) // ROWS)
    chosen: list[Row] = []
    for i, row in enumerate(rows):
        edge = i in (0, len(rows) - 1) or _anew(row, rows[i + 1]) or _anew(rows[i - 1], row)
        if edge or i % stride == 0:
            chosen.append(row)
    return chosen


def _anew(earlier: Row, later: Row) -> bool:
    return any(
        b < a or math.isnan(b) != math.isnan(a) for a, b in zip(earlier[1], later[1], strict=False)
    )
