"""Processes of one job on one node: one reads the devices for all, the others follow it.

The one that holds the job's claim counts. A follower reads only cheap counters, and takes the
readings of slow or costly sensors from the journal of the one who counts. When that one dies, a
follower takes over at its next flush.
"""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wattloop.core.records import Gap
from wattloop.measure.claims import Claim
from wattloop.measure.feeds import MeterFeed
from wattloop.measure.job import Job
from wattloop.measure.merging import OWN_ZERO
from wattloop.store.frames import HEADER, SAMPLES
from wattloop.store.journal import JournalTail, read_journal

__all__ = ["Role", "last_reading_s"]

FOLLOWER_INTERVAL_S = 1.0
LAST_MOMENTS = 0.05
"""A rank that ends after the one that counts leaves this part of its time uncounted."""


class Role:
    """Whether this process counts the node's devices for its job."""

    def __init__(self, run_id: str, job: Job | None) -> None:
        self._run_id = run_id
        self._job = job
        self._claim = Claim(job.claim_name if job is not None else run_id)
        self._journal: Path | None = None
        self._tail: JournalTail | None = None
        self._tail_path = ""
        self._feed_map: dict[int, MeterFeed] = {}
        self._seen_s = -math.inf
        self.counts = True
        self.counted_by: str | None = None
        self.counts_from_s = -math.inf
        """Up to here another process has counted; what we count begins there."""

    @property
    def nested(self) -> bool:
        """Whether this run lies inside one that counts: its energy is part of that one's."""
        return self._job is not None and self._job.kind == "wattloop"

    def decide(self, journal: Path | None) -> None:
        """Claim the node, unless a rank before us should have the first try."""
        self._journal = journal
        if self._may_claim_at_once():
            self._try_claim()
        else:
            self.counts = False

    def watch(self, feeds: Sequence[MeterFeed]) -> None:
        """Follow the journal of the one who counts, if that is another."""
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
        except OSError:  # on a file system that we do not see: we read everything ourselves
            return
        self._poll(feeds)

    def feeds_to_read(
        self, feeds: Sequence[MeterFeed], used: Sequence[MeterFeed]
    ) -> list[MeterFeed]:
        """What this process reads itself."""
        if self.counts or self._tail is None:
            return list(used)
        followed = {id(feed) for feed in self._feed_map.values()}
        return [feed for feed in used if id(feed) not in followed]

    def interval_s(self, wished_s: float, read: Sequence[MeterFeed]) -> float:
        """How often to read; a follower whose windows read at their edges needs little more."""
        if self.counts or not all(feed.cheap_at_edges for feed in read):
            return wished_s
        return max(wished_s, FOLLOWER_INTERVAL_S)

    def flush(self, feeds: Sequence[MeterFeed], *, ending: bool = False) -> bool:
        """Take over if nobody counts, else take the other's readings; True if the role changed.

        A run that is `ending` leaves the claim to those that go on.
        """
        if self.counts:
            return False
        followed = self._tail
        self._poll(feeds)
        if not ending and self._try_claim():
            self._drop_tail()
            return True
        self.watch(feeds)
        return self._tail is not followed

    def settle(self, started_s: float, end_s: float) -> None:
        """At the end of a run that never came to take over: count what no other process has.

        Not for the last moments of ranks that end together.
        """
        if self.counts:
            return
        until_s = max(started_s, self._counted_until_s(self._claim.owner()))
        if until_s == started_s or end_s - until_s > LAST_MOMENTS * (end_s - started_s):
            self._try_claim()

    def release(self, until_s: float) -> None:
        """Let another process of the job count from `until_s` on."""
        self._claim.release(until_s)
        self._drop_tail()

    def forget(self) -> None:
        """In a forked child: drop our copies of the parent's files."""
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
        """Up to when a holder of the claim counted: it says so, or its journal does."""
        if owner is None or owner.get("run_id") == self._run_id:
            return -math.inf
        if "until_s" in owner:
            return float(owner["until_s"])
        if self._tail is not None:
            return self._seen_s
        return last_reading_s(owner.get("journal"))

    def _poll(self, feeds: Sequence[MeterFeed]) -> None:
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
            elif kind == SAMPLES and data.feed in self._feed_map:
                feed = self._feed_map[data.feed]
                width = data.width
                with feed.lock:
                    for i, time_s in enumerate(data.times_s):
                        if time_s > feed.last_s:  # what we have read ourselves is not read again
                            values = data.values[i * width : (i + 1) * width]
                            feed.follow(time_s, [_reading(v) for v in values])

    def _map_feeds(self, header: dict[str, Any], feeds: Sequence[MeterFeed]) -> None:
        """Which of the owner's feeds stand for slow or costly ones of ours."""
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


def last_reading_s(path: str | None) -> float:
    """Time of the last sample in a journal; minus infinity when there is none."""
    try:
        journal = read_journal(Path(path)) if path else None
    except OSError:  # folded into the store meanwhile
        return -math.inf
    blocks = journal.blocks if journal is not None else []
    return max((block.times_s[-1] for block in blocks if block.times_s), default=-math.inf)


def _reading(value: float) -> float | Gap:
    return Gap("not read by the process that counts") if math.isnan(value) else value
