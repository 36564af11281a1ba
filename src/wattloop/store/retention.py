"""Retention: old data is dropped in the order samples, curves, whole runs.

Energy, windows, steps and labels of a run are kept apart from its samples: dropping samples changes
no joule of any total, and curves are drawn from the means over 1, 10 and 60 seconds that are left.
"""

import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import add
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Table, delete, exists, func, select, update

from wattloop.core.errors import ConfigError
from wattloop.core.settings import Settings
from wattloop.core.text import plain_json
from wattloop.store.database import Store
from wattloop.store.runs import delete_for_good_in
from wattloop.store.schema import runs, sample_chunks, sample_levels

AT_ONCE = 50
"""Runs per transaction: other readers and writers run in between."""
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdwy])")
_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800, "y": 31_557_600}


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Maximum ages in seconds since the beginning of the run; infinite is for ever."""

    samples_s: float = math.inf
    levels_s: float = math.inf
    runs_s: float = math.inf

    def __post_init__(self) -> None:
        if not self.samples_s <= self.levels_s <= self.runs_s:
            raise ConfigError("retention: samples go first, then levels, then runs")

    @classmethod
    def parse(cls, text: str) -> "Retention":
        """Parse `samples=30d,levels=1y,runs=forever`; unnamed kinds are kept for ever."""
        ages = {}
        for part in filter(None, (p.strip() for p in text.split(","))):
            name, is_given, age = part.partition("=")
            if name not in ("samples", "levels", "runs") or not is_given:
                raise ConfigError(f"{part!r}: write samples=30d,levels=1y,runs=forever")
            ages[f"{name}_s"] = parse_age(age)
        return cls(**ages)


class Dropped(NamedTuple):
    """Numbers of runs by dropped data, and their size."""

    samples: int = 0
    levels: int = 0
    runs: int = 0
    payload_b: int = 0


def parse_age(text: str) -> float:
    """Parse seconds of `30d`, `12h`, `1y`; `forever` is infinite."""
    if text.strip().lower() == "forever":
        return math.inf
    found = _AGE.fullmatch(text.strip().lower())
    if found is None:
        raise ConfigError(f"{text!r} is not an age; write 12h, 30d, 1y or forever")
    return float(found[1]) * _UNITS_S[found[2]]


def retention_from(settings: Settings) -> Retention | None:
    """Return the retention of the settings; None where they have none.

    Raises:
        ConfigError: the text is invalid; the message names its source.
    """
    if not settings.retain:
        return None
    try:
        return Retention.parse(settings.retain)
    except ConfigError as error:
        raise ConfigError(f"{settings.sources.get('retain', 'retain')}: {error}") from None


def apply_retention(
    store: Store,
    policy: Retention,
    *,
    dry_run: bool = False,
    now_wall_s: float | None = None,
    stop: threading.Event | None = None,
    report: Callable[[Dropped], None] | None = None,
) -> Dropped:
    """Drop old data, some runs at a time; after an interruption the next call continues.

    Args:
        store: from where.
        policy: what is too old.
        dry_run: only report what would be dropped.
        now_wall_s: the time it is; asked from the clock by default.
        stop: set by another thread to end this after some runs.
        report: called after each transaction.
    """
    now_s = time.time() if now_wall_s is None else now_wall_s
    stop = threading.Event() if stop is None else stop
    if dry_run:
        return _would_drop(store, policy, now_s)
    done = Dropped()
    steps = (
        (_drop_runs, runs.c.started_wall_s < now_s - policy.runs_s),
        (_drop_levels, _has_levels(now_s - policy.levels_s)),
        (_drop_samples, _has_samples(now_s - policy.samples_s)),
    )
    for drop, condition in steps:
        while not stop.is_set():
            with store.writing() as connection:
                query = select(runs.c.run_id).where(condition).order_by(runs.c.started_wall_s)
                found = list(connection.execute(query.limit(AT_ONCE)).scalars())
                if not found:
                    break
                done = _sum(done, drop(connection, found, now_s))
            if report is not None:
                report(done)
    return done


def _has_samples(before_wall_s: float) -> ColumnElement[bool]:
    return (runs.c.started_wall_s < before_wall_s) & runs.c.samples_dropped_wall_s.is_(None)


def _has_levels(before_wall_s: float) -> ColumnElement[bool]:
    return (runs.c.started_wall_s < before_wall_s) & runs.c.levels_dropped_wall_s.is_(None)


def _drop_samples(connection: Connection, run_ids: list[str], now_s: float) -> Dropped:
    """Drop samples of series that have levels: a run of two samples has none."""
    condition = _replaceable() & sample_chunks.c.run_id.in_(run_ids)
    size_b = _payload_b(connection, sample_chunks, condition)
    connection.execute(delete(sample_chunks).where(condition))
    _mark(connection, run_ids, now_s, "samples_dropped_wall_s", "its single samples")
    return Dropped(samples=len(run_ids), payload_b=size_b)


def _drop_levels(connection: Connection, run_ids: list[str], now_s: float) -> Dropped:
    size_b = 0
    for table in (sample_chunks, sample_levels):
        condition = table.c.run_id.in_(run_ids)
        size_b += _payload_b(connection, table, condition)
        connection.execute(delete(table).where(condition))
    change = update(runs).where(runs.c.run_id.in_(run_ids))
    connection.execute(change.values(samples_dropped_wall_s=now_s))
    _mark(connection, run_ids, now_s, "levels_dropped_wall_s", "its curves")
    return Dropped(levels=len(run_ids), payload_b=size_b)


def _drop_runs(connection: Connection, run_ids: list[str], now_s: float) -> Dropped:
    del now_s
    size_b = sum(
        _payload_b(connection, table, table.c.run_id.in_(run_ids))
        for table in (sample_chunks, sample_levels)
    )
    for run_id in run_ids:
        delete_for_good_in(connection, run_id)
    return Dropped(runs=len(run_ids), payload_b=size_b)


def _mark(connection: Connection, run_ids: list[str], now_s: float, column: str, what: str) -> None:
    """Mark the runs that lost data."""
    day = time.strftime("%Y-%m-%d", time.gmtime(now_s))
    query = select(runs.c.run_id, runs.c.body).where(runs.c.run_id.in_(run_ids))
    for run_id, text in connection.execute(query).all():
        body: dict[str, Any] = json.loads(text)
        said = f"{what} were dropped on {day}, as the policy for old runs says; its energy is kept"
        body["notes"] = [*(body.get("notes") or ()), said]
        values: dict[str, Any] = {column: now_s, "body": plain_json(body)}
        connection.execute(update(runs).where(runs.c.run_id == run_id).values(**values))


def _would_drop(store: Store, policy: Retention, now_s: float) -> Dropped:
    gone = runs.c.started_wall_s < now_s - policy.runs_s
    bare = _has_levels(now_s - policy.levels_s) & ~gone
    thin = _has_samples(now_s - policy.samples_s) & ~gone
    thin = thin & (runs.c.started_wall_s >= now_s - policy.levels_s)
    with store.reading() as connection:

        def count(condition: ColumnElement[bool]) -> int:
            query = select(func.count()).select_from(runs).where(condition)
            return int(connection.execute(query).scalar_one())

        def size_b(table: Table, condition: ColumnElement[bool]) -> int:
            of_runs = table.c.run_id.in_(select(runs.c.run_id).where(condition))
            extra = _replaceable() if condition is thin else table.c.run_id.is_not(None)
            return _payload_b(connection, table, of_runs & extra)

        both = (sample_chunks, sample_levels)
        sizes_b: Iterator[int] = (size_b(table, c) for table in both for c in (gone, bare))
        return Dropped(
            samples=count(thin),
            levels=count(bare),
            runs=count(gone),
            payload_b=size_b(sample_chunks, thin) + sum(sizes_b),
        )


def _replaceable() -> ColumnElement[bool]:
    """Return chunks of which a coarser level exists."""
    return exists().where(
        sample_levels.c.run_id == sample_chunks.c.run_id,
        sample_levels.c.feed == sample_chunks.c.feed,
    )


def _payload_b(connection: Connection, table: Table, condition: ColumnElement[bool]) -> int:
    query = select(func.coalesce(func.sum(func.length(table.c.payload)), 0)).where(condition)
    return int(connection.execute(query).scalar_one())


def _sum(one: Dropped, other: Dropped) -> Dropped:
    return Dropped(*map(add, one, other))
