"""Readings of several processes on one node, made into those of a single watcher.

Every process stamps its readings by itself, and on a busy machine a stamp may be off by the time
the process had to wait; readings sorted by such stamps would run backwards. So one process is
believed for as long as it was there, and others only for the time before and after it.
"""

from __future__ import annotations  # array[float] cannot be evaluated before Python 3.12

import math
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

from wattloop.store.frames import SampleBlock
from wattloop.store.journal import Journal

__all__ = ["merged_journal"]

LATE_STAMP_S = 1.0
"""A counter that steps back this shortly after a change of process was stamped late."""
OWN_ZERO = frozenset({"perf", "estimate", "virtual", "virtual-node"})
"""Meters that count from the moment a process opened them; others show everybody the same."""

Rows = list[tuple[float, list[float]]]


class _Layout(NamedTuple):
    """A meter with its domains: the same in every process that reads it."""

    meter: str
    names: tuple[str, ...]
    description: dict[str, Any]

    @property
    def key(self) -> tuple[str, ...]:
        return (self.meter, *self.names)

    @property
    def counters(self) -> list[int]:
        kinds = enumerate(d["kind"] for d in self.description["domains"])
        return [i for i, kind in kinds if kind == "counter"]


def merged_journal(journals: Sequence[Journal]) -> Journal:
    """One journal out of several of the same node, the most trusted first."""
    layouts: dict[tuple[str, ...], _Layout] = {}
    merged: dict[tuple[str, ...], Rows] = {}
    for journal in journals:
        own = [_layout(feed) for feed in journal.header["feeds"]]
        for layout in own:
            layouts.setdefault(layout.key, layout)
        for index, rows in _rows(journal, len(own)).items():
            layout = own[index]
            merged[layout.key] = _joined(merged.get(layout.key, []), rows, layout)
    first = journals[0]
    header = {**first.header, "feeds": [layout.description for layout in layouts.values()]}
    blocks = [
        _block(feed, len(layout.names), merged[key])
        for feed, (key, layout) in enumerate(layouts.items())
        if merged.get(key)
    ]
    return Journal(first.path, header, blocks)


def _joined(trusted: Rows, other: Rows, layout: _Layout) -> Rows:
    """`trusted`, with what `other` has of the time before and after."""
    counters = layout.counters
    shifted = counters if layout.meter in OWN_ZERO else []
    if not trusted or not other:
        return trusted or other
    begin_s, end_s = trusted[0][0], trusted[-1][0]
    before = [row for row in other if row[0] < begin_s]
    after = [row for row in other if row[0] > end_s]
    if before:
        shifts = _shifts(trusted[0], other, shifted)
        before = [_shifted(row, shifts) for row in before]
        while before and _runs_back(before[-1], trusted[0], counters):
            before.pop()
    if after:
        shifts = _shifts(trusted[-1], other, shifted)
        after = [_shifted(row, shifts) for row in after]
        while after and _runs_back(trusted[-1], after[0], counters):
            after.pop(0)
    return [*before, *trusted, *after]


def _shifts(seam: tuple[float, list[float]], other: Rows, counters: list[int]) -> dict[int, float]:
    """What to add to each counter of `other`, so that it goes on where `seam` stands."""
    time_s, values = seam
    i = bisect_right(other, time_s, key=lambda row: row[0])
    if i in (0, len(other)):
        return {}
    (left_s, left), (right_s, right) = other[i - 1], other[i]
    share = (time_s - left_s) / (right_s - left_s) if right_s > left_s else 0.0
    shifts = {c: values[c] - (left[c] + share * (right[c] - left[c])) for c in counters}
    return {c: shift_j for c, shift_j in shifts.items() if not math.isnan(shift_j)}


def _shifted(row: tuple[float, list[float]], shifts: dict[int, float]) -> tuple[float, list[float]]:
    if not shifts:
        return row
    return row[0], [value + shifts.get(i, 0.0) for i, value in enumerate(row[1])]


def _runs_back(
    earlier: tuple[float, list[float]], later: tuple[float, list[float]], counters: list[int]
) -> bool:
    if later[0] - earlier[0] > LATE_STAMP_S:
        return False
    return any(later[1][c] < earlier[1][c] for c in counters)


def _rows(journal: Journal, feeds: int) -> dict[int, Rows]:
    rows: dict[int, Rows] = {}
    for block in journal.blocks:
        if block.feed < feeds:
            width = block.width
            rows.setdefault(block.feed, []).extend(
                (time_s, list(block.values[i * width : (i + 1) * width]))
                for i, time_s in enumerate(block.times_s)
            )
    for taken in rows.values():
        taken.sort(key=lambda row: row[0])
    return rows


def _block(feed: int, width: int, rows: Rows) -> SampleBlock:
    times_s = array("d", (time_s for time_s, _ in rows))
    values = array("d", (value for _, row in rows for value in row))
    return SampleBlock(feed, width, times_s, values)


def _layout(feed: dict[str, Any]) -> _Layout:
    return _Layout(feed["meter"], tuple(d["name"] for d in feed["domains"]), feed)
