"""Read samples from the store, and curves to draw."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

from sqlalchemy import ColumnElement, Connection, Table, and_, select

from wattloop.store.database import Store
from wattloop.store.samples import TIMES, Curve, Series, coarser, unpack, unpack_curve
from wattloop.store.schema import sample_chunks, sample_levels

Span = tuple[float | None, float | None]
"""Begin and end on the run's monotonic clock; None means open."""
WHOLE: Span = (None, None)


def read_samples(
    store: Store, run_id: str, series: Series, span: Span = WHOLE
) -> tuple[array[float], array[float]]:
    """Return (times, raw values) of one series; NaN marks a gap."""
    table = sample_chunks
    query = (
        select(table.c.part, table.c.series, table.c.payload)
        .where(table.c.run_id == run_id, table.c.feed == series.feed)
        .where(table.c.series.in_((TIMES, series.column)))
        .where(overlaps(table, span))
        .order_by(table.c.part, table.c.series)
    )
    times_s, values = array("d"), array("d")
    with store.reading() as connection:
        for _, column, payload in connection.execute(query):
            (times_s if column == TIMES else values).extend(unpack(payload))
    return _cut(times_s, values, span)


def overlaps(table: Table, span: Span) -> ColumnElement[bool]:
    """Return the condition for chunks that overlap `span`."""
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


def read_curve(
    store: Store, run_id: str, series: Series, max_points: int = 2_000, span: Span = WHOLE
) -> Curve:
    """Return the finest level with at most `max_points` points within `span`, or single samples.

    If even the coarsest level has more, it is downsampled further.
    """
    with store.reading() as connection:
        levels = _points(connection, sample_levels, run_id, series, span)
        samples = _points(connection, sample_chunks, run_id, series, span).get(0, 0.0)
        # an old run has only levels, no samples
        if levels and not 0 < samples <= max_points:
            fitting = [level_s for level_s, points in levels.items() if points <= max_points]
            level_s = min(fitting) if fitting else max(levels)
            curve = _level(connection, run_id, series, level_s, span)
            return _thinned(curve, max_points)
    times_s, raw = read_samples(store, run_id, series, span)
    values = series.watts(times_s, raw)
    return _thinned(Curve(0.0, times_s, values, values, values), max_points)


def _points(
    connection: Connection, table: Table, run_id: str, series: Series, span: Span
) -> dict[int, float]:
    """Count points within `span` by level (0 for single samples), without reading any of them.

    Of a chunk that reaches beyond the span, the share that lies within is taken.
    """
    level = table.c.level_s if "level_s" in table.c else None
    columns = [table.c.begin_s, table.c.end_s, table.c.count, *([] if level is None else [level])]
    query = select(*columns).where(
        table.c.run_id == run_id,
        table.c.feed == series.feed,
        table.c.series == series.column,
        overlaps(table, span),
    )
    found: dict[int, float] = {}
    for begin_s, end_s, count, *rest in connection.execute(query):
        low_s = begin_s if span[0] is None else max(begin_s, span[0])
        high_s = end_s if span[1] is None else min(end_s, span[1])
        share = (high_s - low_s) / (end_s - begin_s) if end_s > begin_s else 1.0
        level_s = int(rest[0]) if rest else 0
        found[level_s] = found.get(level_s, 0.0) + share * count
    return found


def _level(connection: Connection, run_id: str, series: Series, level_s: int, span: Span) -> Curve:
    table = sample_levels
    query = (
        select(table.c.payload)
        .where(table.c.run_id == run_id, table.c.feed == series.feed)
        .where(table.c.series == series.column, table.c.level_s == level_s)
        .where(overlaps(table, span))
        .order_by(table.c.part)
    )
    curve = Curve(level_s)
    for (payload,) in connection.execute(query):
        curve.extend(unpack_curve(payload))
    half_s = level_s / 2  # a bin that only touches the span is shown
    low = 0 if span[0] is None else bisect_left(curve.times_s, span[0] - half_s)
    high = len(curve) if span[1] is None else bisect_right(curve.times_s, span[1] + half_s)
    return curve.part(low, high)


def _thinned(curve: Curve, max_points: int) -> Curve:
    if len(curve) <= max_points or not max_points:
        return curve
    span_s = curve.times_s[-1] - curve.times_s[0]
    level_s = span_s / max_points * 1.01 or 1.0
    return coarser(curve, level_s)
