"""Node leader: one process per job and node reads the devices, the others follow it."""

from __future__ import annotations

import json
import math
import os
import time
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from wattloop.core.files import FileLock, runtime_folder, user_id
from wattloop.core.records import Gap
from wattloop.measure.job import Job
from wattloop.measure.meter_stream import MeterStream
from wattloop.store.journal import HEADER, SAMPLES, Journal, JournalTail, SampleBlock, read_journal

# Node lock.
#
# An exclusive `flock` on a small file named after the job. The kernel releases it when its holder
# dies, and another process of the job takes over.

KEPT_S = 86_400.0
"""An unlocked lock file is removed a day after a process of its job last acquired it."""
TIDY_EVERY_S = 3600.0
"""Checking thousands of lock files takes a tenth of a second, so not every run does it."""


class CounterRow(NamedTuple):
    """Counters of one meter where a process stopped counting; None for a gauge or a gap."""

    meter: str
    domains: Sequence[str]
    time_s: float
    values: Sequence[float | None]


class NodeLock:
    """The right to count this node's devices for one job."""

    def __init__(self, job_id: str, directory: Path | None = None) -> None:
        self._lock = FileLock((directory or runtime_folder()) / f"{_file_name(job_id)}.claim")
        self.before: dict[str, Any] | None = None
        """Description of the previous holder, as that process left it; known once the lock was
        acquired."""

    @property
    def held(self) -> bool:
        """True if this process holds the lock."""
        return self._lock.held

    def take(self, owner: dict[str, Any]) -> bool:
        """Try to become the leader; `owner` is the description that other processes will read."""
        if self.held:
            return True
        folder = self._lock.path.parent
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # in /tmp, another user may have made it, or a link of that name to a folder of ours
            if {folder.stat().st_uid, folder.lstat().st_uid} != {user_id()}:
                return True
            if not self._lock.acquire():
                return False
        except OSError:
            return True  # no lock is possible: count, rather than lose the energy
        self.before = self.owner()
        self._lock.describe(json.dumps(owner))
        return True

    def owner(self) -> dict[str, Any] | None:
        """Description of the holder."""
        try:
            data: dict[str, Any] = json.loads(self._lock.owner())
        except ValueError:
            return None
        return data

    def release(self, until_s: float | None = None, counters: Sequence[CounterRow] = ()) -> None:
        """Let another process lead; this one counted up to `until_s`, where its `counters` were."""
        if not self.held:
            return
        owner = self.owner()
        if until_s is not None and owner is not None:
            owner["until_s"] = until_s
            if counters:
                owner["counters"] = [row._asdict() for row in counters]
            self._lock.describe(json.dumps(owner))
        self._lock.release()
        _tidy(self._lock.path.parent)

    def forget(self) -> None:
        """Close the copy of the lock in a forked child; the parent keeps it."""
        self._lock.release()


def _tidy(directory: Path) -> None:
    """Occasionally remove the lock files of jobs that ended long ago."""
    now_s = time.time()
    last, oldest_s = directory / "tidied", now_s - KEPT_S
    with suppress(FileNotFoundError):
        if 0 <= now_s - last.stat().st_mtime < TIDY_EVERY_S:
            return
    with suppress(OSError):
        last.touch(mode=0o600)
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith(".claim") and entry.stat().st_mtime < oldest_s:
                _remove_unless_held(Path(entry.path))


def _remove_unless_held(path: Path) -> None:
    lock = FileLock(path)
    with suppress(OSError):
        if lock.acquire():
            lock.release(remove=True)


def _file_name(job_id: str) -> str:
    """Return a file name that is unique for each job and valid on every file system."""
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in job_id)[:120]
    return f"{safe}-{zlib.crc32(job_id.encode()):08x}"


# Merging the readings of several processes on one node.
#
# Every process uses its own timestamps, and on a busy machine a timestamp may be late by the time
# the process had to wait. Readings sorted by such timestamps would run backwards. So the readings
# of one process are used as long as it has any, and those of others only before and after.

LATE_STAMP_S = 1.0
"""A counter that falls this shortly after a change of process had a late timestamp."""
OWN_ZERO = frozenset({"perf", "estimate", "virtual", "virtual-node"})
"""Meters that count from the moment a process opened them; all others show every process the
same."""
Rows = list[tuple[float, list[float]]]


class _Layout(NamedTuple):
    """A meter with its domains, which is the same in every process that reads it."""

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
    """Merge several journals of the same node, the most trusted first."""
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
    """Extend `trusted` with the readings of `other` from before and after."""
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
    """Return the offset of each counter of `other` that makes it continue at `seam`."""
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


# Role of a process in its job.
#
# The process that holds the node lock counts. A follower reads only cheap counters, and takes the
# readings of slow or costly sensors from the leader's journal. When the leader dies, a follower
# takes over at its next flush.

FOLLOWER_INTERVAL_S = 1.0
LAST_MOMENTS = 0.01
"""A rank that ends after the leader leaves this part of its time uncounted."""


class LeaderRole:
    """Role of this process: leader, which counts the node's devices for its job, or follower."""

    def __init__(self, run_id: str, job: Job | None) -> None:
        self._run_id = run_id
        self._job = job
        self._claim = NodeLock(job.claim_name if job is not None else run_id)
        self._journal: Path | None = None
        self._tail: JournalTail | None = None
        self._tail_path = ""
        self._feed_map: dict[int, MeterStream] = {}
        self._leader_feeds: list[_Layout] = []
        self._seen_s = -math.inf
        self.counts = True
        self.counted_by: str | None = None
        self.counts_from_s = -math.inf
        """Time up to which another process has counted; this process counts from there."""
        self._last_rows: dict[int, CounterRow] = {}
        """Last readings of the leader, by its streams."""

    @property
    def nested(self) -> bool:
        """True if this run lies inside a counting run: its energy is part of that run's."""
        return self._job is not None and self._job.kind == "wattloop"

    def decide(self, journal: Path | None) -> None:
        """Try to become the leader, unless a lower rank should try first."""
        self._journal = journal
        if self._may_claim_at_once():
            self._try_claim()
        else:
            self.counts = False

    def watch(self, feeds: Sequence[MeterStream]) -> None:
        """Follow the journal of the leader, if that is another process."""
        if self.counts:
            return
        owner = self._claim.owner() or {}
        self.counted_by = owner.get("run_id", self.counted_by)
        path = owner.get("journal")
        if not path or path == self._tail_path:
            return
        self._drop_tail()
        try:
            self._tail, self._tail_path = JournalTail(Path(path)), path
        # on a file system that is not visible here: read everything in this process
        except OSError:
            return
        self._poll(feeds)

    def feeds_to_read(
        self, feeds: Sequence[MeterStream], used: Sequence[MeterStream]
    ) -> list[MeterStream]:
        """Return the streams that this process reads itself."""
        if self.counts or self._tail is None:
            return list(used)
        followed = {id(feed) for feed in self._feed_map.values()}
        return [feed for feed in used if id(feed) not in followed]

    def interval_s(self, wished_s: float, read: Sequence[MeterStream]) -> float:
        """Return the sampling interval; a follower that reads at edges needs few readings."""
        if self.counts or not all(feed.cheap_at_edges for feed in read):
            return wished_s
        return max(wished_s, FOLLOWER_INTERVAL_S)

    def flush(self, feeds: Sequence[MeterStream], *, ending: bool = False) -> bool:
        """Take over if the job has no leader, else take the leader's readings; return True if the
        role changed.

        A run that is `ending` leaves the lock to the processes that continue.
        """
        if self.counts:
            return False
        followed = self._tail
        self._poll(feeds)
        if not ending and self._try_claim():
            self._insert_seam(feeds)
            self._drop_tail()
            return True
        self.watch(feeds)
        return self._tail is not followed

    def settle(self, started_s: float, end_s: float, feeds: Sequence[MeterStream] = ()) -> None:
        """Count what no other process has counted, at the end of a run that never became leader.

        Ignores the last moments of ranks that end together.
        """
        if self.counts:
            return
        until_s = max(started_s, self._counted_until_s(self._claim.owner()))
        tail = end_s - until_s > LAST_MOMENTS * (end_s - started_s)
        if (until_s == started_s or tail) and self._try_claim():
            self._insert_seam(feeds)

    def release(self, until_s: float, feeds: Sequence[MeterStream] = ()) -> None:
        """Let another process of the job lead from `until_s` on."""
        rows = [
            CounterRow(feed.meter.name, names, until_s, feed.counters_at(until_s))
            for feed in feeds
            if feed.meter.name not in OWN_ZERO
            for names in [[domain.name for domain in feed.domains]]
        ]
        self._claim.release(
            until_s, [row for row in rows if any(value is not None for value in row.values)]
        )
        self._drop_tail()

    def forget(self) -> None:
        """In a forked child: close the copies of the parent's files."""
        self._claim.forget()
        self._drop_tail()

    def _may_claim_at_once(self) -> bool:
        return self._job is None or not self._job.local_rank

    def _try_claim(self) -> bool:
        owner: dict[str, Any] = {
            "run_id": self._run_id,
            "pid": os.getpid(),
            "journal": None if self._journal is None else str(self._journal),
            "rank": None if self._job is None else self._job.rank,
        }
        self.counts = self._claim.take(owner)
        if self.counts:
            self.counted_by = None
            self.counts_from_s = self._counted_until_s(self._claim.before)
        else:
            self.counted_by = (self._claim.owner() or {}).get("run_id")
        return self.counts

    def _counted_until_s(self, owner: dict[str, Any] | None) -> float:
        """Return when the last holder stopped counting, by its description or journal."""
        if owner is None or owner.get("run_id") == self._run_id:
            return -math.inf
        if "until_s" in owner:
            return float(owner["until_s"])
        if self._tail is not None:
            return self._seen_s
        return last_reading_s(owner.get("journal"))

    def _insert_seam(self, feeds: Sequence[MeterStream]) -> None:
        """Add the last counters of the previous leader to the curves of this process.

        A follower reads seldom. Without them, its energy from `counts_from_s` on would be
        interpolated over up to a second in which the power may have changed.
        """
        mine = {(feed.meter.name, *(d.name for d in feed.domains)): feed for feed in feeds}
        for row in _stated_rows(self._claim.before) or self._last_rows.values():
            feed = mine.get((row.meter, *row.domains))
            if feed is not None and feed.meter.name not in OWN_ZERO:
                feed.insert(row.time_s, row.values)

    def _poll(self, feeds: Sequence[MeterStream]) -> None:
        if self._tail is None:
            return
        try:
            frames = list(self._tail.poll())
        except (OSError, ValueError):  # the disk it lies on is gone
            self._drop_tail()
            return
        for kind, data in frames:
            if kind == SAMPLES and data.times_s:
                self._seen_s = max(self._seen_s, data.times_s[-1])
            if kind == HEADER:
                self._map_feeds(data, feeds)
                self._leader_feeds = [_layout(feed) for feed in data["feeds"]]
            elif kind == SAMPLES and data.times_s and data.feed < len(self._leader_feeds):
                layout = self._leader_feeds[data.feed]
                last = [None if math.isnan(v) else v for v in data.values[-data.width :]]
                row = CounterRow(layout.meter, layout.names, data.times_s[-1], last)
                self._last_rows[data.feed] = row
            if kind == SAMPLES and data.feed in self._feed_map:
                feed = self._feed_map[data.feed]
                width = data.width
                with feed.lock:
                    for i, time_s in enumerate(data.times_s):
                        if time_s > feed.last_s:  # readings of this process are not added twice
                            values = data.values[i * width : (i + 1) * width]
                            feed.follow(time_s, [_reading(v) for v in values])

    def _map_feeds(self, header: dict[str, Any], feeds: Sequence[MeterStream]) -> None:
        """Map the leader's streams to slow or costly streams of this process."""
        mine = {
            tuple(d.name for d in f.domains): f
            for f in feeds
            if not f.cheap_at_edges and f.meter.name not in OWN_ZERO
        }
        for index, theirs in enumerate(header["feeds"]):
            names = tuple(d["name"] for d in theirs["domains"])
            feed = mine.get(names)
            if feed is not None and feed.meter.name == theirs["meter"]:
                self._feed_map[index] = feed

    def _drop_tail(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None
        self._tail_path = ""
        self._seen_s = -math.inf
        self._feed_map.clear()
        self._leader_feeds.clear()
        self._last_rows.clear()


def _stated_rows(owner: dict[str, Any] | None) -> list[CounterRow]:
    """Return the counters that a leader left in the lock; none from an older version."""
    try:
        rows = [CounterRow(**row) for row in (owner or {}).get("counters", ())]
        return [row for row in rows if len(row.domains) == len(row.values)]
    except TypeError:
        return []


def last_reading_s(path: str | None) -> float:
    """Return the time of the last sample in a journal; minus infinity when it has none."""
    try:
        journal = read_journal(Path(path)) if path else None
    except OSError:  # imported into the store meanwhile
        return -math.inf
    blocks = journal.blocks if journal is not None else []
    return max((block.times_s[-1] for block in blocks if block.times_s), default=-math.inf)


def _reading(value: float) -> float | Gap:
    return Gap("not read by the process that counts") if math.isnan(value) else value
