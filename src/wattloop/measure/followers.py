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
from wattloop.store.journal import HEADER, SAMPLES, JournalTail

__all__ = ["Role"]

FOLLOWER_INTERVAL_S = 1.0


class Role:
    """Whether this process counts the node's devices for its job."""

    def __init__(self, run_id: str, job: Job | None) -> None:
        self._run_id = run_id
        self._job = job
        self._claim = Claim(job.job_id if job is not None else run_id)
        self._journal: Path | None = None
        self._tail: JournalTail | None = None
        self._feed_map: dict[int, MeterFeed] = {}
        self._flushes = 0
        self.counts = True
        self.counted_by: str | None = None

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
        if self.counts or self._tail is not None:
            return
        owner = self._claim.owner()
        path = (owner or {}).get("journal")
        self.counted_by = (owner or {}).get("run_id")
        if not path:
            return
        try:
            self._tail = JournalTail(Path(path))
        except OSError:
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

    def interval_s(self, wished_s: float) -> float:
        """Followers need fewer readings."""
        return wished_s if self.counts else max(wished_s, FOLLOWER_INTERVAL_S)

    def flush(self, feeds: Sequence[MeterFeed]) -> bool:
        """Take over if nobody counts, else take the other's readings; True if the role changed."""
        self._flushes += 1
        if self.counts:
            return False
        if self._try_claim():
            self._drop_tail()
            return True
        had_tail = self._tail is not None
        self.watch(feeds)
        self._poll(feeds)
        return self._tail is not None and not had_tail

    def settle(self) -> None:
        """At the end of a short run that never came to flush: somebody has to count."""
        if not self.counts:
            self._try_claim()

    def release(self) -> None:
        """Let another process of the job count from now on."""
        self._claim.release()
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
        else:
            self.counted_by = (self._claim.owner() or {}).get("run_id")
        return self.counts

    def _poll(self, feeds: Sequence[MeterFeed]) -> None:
        if self._tail is None:
            return
        for kind, data in self._tail.poll():
            if kind == HEADER:
                self._map_feeds(data, feeds)
            elif kind == SAMPLES and data.feed in self._feed_map:
                feed = self._feed_map[data.feed]
                width = data.width
                with feed.lock:
                    for i, time_s in enumerate(data.times_s):
                        values = data.values[i * width : (i + 1) * width]
                        feed.follow(time_s, [_reading(v) for v in values])

    def _map_feeds(self, header: dict[str, Any], feeds: Sequence[MeterFeed]) -> None:
        """Which of the owner's feeds stand for slow or costly ones of ours."""
        mine = {tuple(d.name for d in f.domains): f for f in feeds if not f.cheap_at_edges}
        for index, theirs in enumerate(header["feeds"]):
            names = tuple(d["name"] for d in theirs["domains"])
            feed = mine.get(names)
            if feed is not None and feed.meter.name == theirs["meter"]:
                self._feed_map[index] = feed

    def _drop_tail(self) -> None:
        if self._tail is not None:
            self._tail.close()
            self._tail = None
        self._feed_map.clear()


def _reading(value: float) -> float | Gap:
    return Gap("not read by the process that counts") if math.isnan(value) else value
