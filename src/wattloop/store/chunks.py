"""Samples of a run: packed arrays per series and stretch of time.

The domains (and signals) of one meter are read together, so they share one array of times. Times
are kept to the microsecond, values exactly. `sample_levels` holds the same as power over 1, 10
and 60 seconds, so that drawing a day does not touch the samples at all.
"""

from __future__ import annotations  # array[float] cannot be evaluated before Python 3.12

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import le
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, and_, insert, select

from wattloop.store.database import Store
from wattloop.store.frames import SampleBlock
from wattloop.store.levels import (
    LEVELS_S,
    Curve,
    binned,
    coarser,
    pack_curve,
    watts,
)
from wattloop.store.packing import pack, unpack
from wattloop.store.schema import sample_chunks, sample_levels
from wattloop.store.series import Series, series_of

__all__ = [
    "PART_LENGTH",
    "WHOLE",
    "PackedSamples",
    "Span",
    "overlaps",
    "pack_samples",
    "read_samples",
]

PART_LENGTH = 32_768
"""Samples per chunk: long enough to compress well, short enough to open a part of a run."""
_TIMES = -1

Span = tuple[float | None, float | None]
"""Begin and end on the run's monotonic clock; None means open."""
WHOLE: Span = (None, None)


@dataclass(frozen=True, slots=True)
class PackedSamples:
    """Rows that are ready to be inserted; packing takes longer than any lock should be held."""

    chunks: list[dict[str, Any]] = field(default_factory=list)
    levels: list[dict[str, Any]] = field(default_factory=list)

    def insert(self, connection: Connection) -> None:
        """Put them into the store."""
        if self.chunks:
            connection.execute(insert(sample_chunks), self.chunks)
        if self.levels:
            connection.execute(insert(sample_levels), self.levels)


def pack_samples(
    run_id: str, feeds: Sequence[Mapping[str, Any]], blocks: Iterable[SampleBlock]
) -> PackedSamples:
    """All readings of a run as rows. Blocks that no feed describes are left out."""
    described: dict[int, list[Series]] = {}
    for series in series_of(feeds):
        described.setdefault(series.feed, []).append(series)
    gathered: dict[int, tuple[array[float], array[float]]] = {}
    for block in blocks:
        width = len(described.get(block.feed, ()))
        if width == 0 or width != block.width or len(block.values) != width * len(block.times_s):
            continue  # nobody could say what these numbers are
        times_s, values = gathered.setdefault(block.feed, (array("d"), array("d")))
        times_s.extend(block.times_s)
        values.extend(block.values)
    packed = PackedSamples()
    for feed, (times_s, values) in gathered.items():
        width = len(described[feed])
        moments_s, columns = _in_order(times_s, [values[i::width] for i in range(width)])
        rounded_s = array("d", [round(t * 1e6) / 1e6 for t in moments_s])
        packed.chunks.extend(_chunk_rows(run_id, feed, rounded_s, columns))
        for series, column in zip(described[feed], columns, strict=True):
            packed.levels.extend(_level_rows(run_id, series, rounded_s, column))
    return packed


def read_samples(
    store: Store,
    run_id: str,
    series: Series,
    span: Span = WHOLE,
) -> tuple[array[float], array[float]]:
    """(times, raw values) of one series; NaN marks a gap."""
    table = sample_chunks
    query = (
        select(table.c.part, table.c.series, table.c.payload)
        .where(table.c.run_id == run_id, table.c.feed == series.feed)
        .where(table.c.series.in_((_TIMES, series.column)))
        .where(overlaps(table, span))
        .order_by(table.c.part, table.c.series)
    )
    times_s, values = array("d"), array("d")
    with store.reading() as connection:
        for _, column, payload in connection.execute(query):
            (times_s if column == _TIMES else values).extend(unpack(payload))
    return _cut(times_s, values, span)


def _chunk_rows(
    run_id: str, feed: int, times_s: array[float], columns: Sequence[array[float]]
) -> Iterator[dict[str, Any]]:
    for part, begin in enumerate(range(0, len(times_s), PART_LENGTH)):
        stretch = slice(begin, begin + PART_LENGTH)
        moments_s = times_s[stretch]
        for series, values in ((_TIMES, times_s), *enumerate(columns)):
            yield {
                "run_id": run_id,
                "feed": feed,
                "part": part,
                "series": series,
                "begin_s": moments_s[0],
                "end_s": moments_s[-1],
                "count": len(moments_s),
                "payload": pack(values[stretch]),
            }


def _level_rows(
    run_id: str, series: Series, times_s: array[float], raw: array[float]
) -> Iterator[dict[str, Any]]:
    values = watts(times_s, raw, counter=series.kind == "counter", wrap_j=series.wrap_j)
    finest: Curve | None = None
    for level_s in LEVELS_S:
        curve = binned(times_s, values, level_s) if finest is None else coarser(finest, level_s)
        if 2 * len(curve) > len(times_s if finest is None else finest):
            continue  # hardly shorter than what there is
        finest = curve
        for part, begin in enumerate(range(0, len(curve), PART_LENGTH)):
            points = curve.part(begin, begin + PART_LENGTH)
            yield {
                "run_id": run_id,
                "feed": series.feed,
                "series": series.column,
                "level_s": level_s,
                "part": part,
                "begin_s": points.times_s[0] - level_s / 2,
                "end_s": points.times_s[-1] + level_s / 2,
                "count": len(points),
                "payload": pack_curve(points),
            }


def _in_order(
    times_s: array[float], columns: list[array[float]]
) -> tuple[array[float], list[array[float]]]:
    """Readings by time: threads that close windows may append slightly out of order."""
    if all(map(le, times_s, times_s[1:])):
        return times_s, columns
    order = sorted(range(len(times_s)), key=times_s.__getitem__)
    return (
        array("d", [times_s[i] for i in order]),
        [array("d", [column[i] for i in order]) for column in columns],
    )


def overlaps(table: Table, span: Span) -> ColumnElement[bool]:
    """The condition for chunks that hold a part of `span`."""
    begin_s, end_s = span
    conditions = [table.c.count > 0]
    if begin_s is not None:
        conditions.append(table.c.end_s >= begin_s)
    if end_s is not None:
        conditions.append(table.c.begin_s <= end_s)
    return and_(*conditions)


def _cut(
    times_s: array[float], values: array[float], span: Span
) -> tuple[array[float], array[float]]:
    begin_s, end_s = span
    low = 0 if begin_s is None else bisect_left(times_s, begin_s)
    high = len(times_s) if end_s is None else bisect_right(times_s, end_s)
    return times_s[low:high], values[low:high]
