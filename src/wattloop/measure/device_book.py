"""Book of a GPU that several runs share: each interval of its energy, once for all of them.

Runs with `share: process` are processes of their own, with their own readings and fits. Parts that
each computed from its own would not add up to the card. So the runs of one user on one GPU write a
common file in the machine's folder of runs: energy and users of each interval, written by whichever
run comes first. A run that ends computes its part of these intervals and writes that too. The other
runs divide what is left. So the parts add up to the energy in the book, whatever fit each run used.

Intervals end where a run begins or ends, and where a run has taken a look at the processes. A
process that is killed while it writes leaves a line without an end, which the next one removes.
"""

from __future__ import annotations

import json
import math
import os
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from wattloop.accounting.device_shares import PowerFit, UseInterval, energies_j, merged
from wattloop.core.files import (
    CLOSE_ON_EXEC,
    NO_FOLLOW,
    FileLock,
    atomic_write,
    user_id,
)

MOST_INTERVALS = 2_048
MOST_EDGES = 256
MOST_BYTES = 64 << 20
LOCK_WAIT_S = 2.0
GAP_S = 60.0
"""After so long without a run on the card, earlier intervals concern no run."""
PATIENCE_S = 2.0
IDLE_S = 5.0
"""Time without a user from which on the card's idle power is taken as seen."""
LEAST_SCALE = 0.75
LATE = 8
"""Intervals for which the use of a process may be listed after its end."""
TICK_S = 0.01
"""Unit of the start of a process in /proc."""
VERSION = 1
Measure = Callable[[float, float], UseInterval | None]
"""Returns energy and users of a device between two instants; None where they are unknown."""
Counter = Callable[[float, float], float | None]
"""Returns its energy alone, which costs the same for any length of time."""


class BookedInterval(NamedTuple):
    """An interval, and the joules that runs that have ended took of it, by process."""

    begin_s: float
    end_s: float
    interval: UseInterval
    booked: Mapping[Hashable, float] = {}

    def between(self, begin_s: float, end_s: float, energy_j: float | None) -> BookedInterval:
        """Return a part of it; `energy_j` is that of the part, if known, else it is even."""
        whole = self.interval
        share = (end_s - begin_s) / whole.duration_s
        if energy_j is None or whole.energy_j <= 0:
            energy_j = share * whole.energy_j
        part = min(1.0, energy_j / whole.energy_j) if whole.energy_j > 0 else share
        interval = whole._replace(duration_s=end_s - begin_s, energy_j=part * whole.energy_j)
        booked = {pid: part * joules for pid, joules in self.booked.items()}
        return BookedInterval(begin_s, end_s, interval, booked)


class DeviceBook:
    """The book of one GPU, as this process knows it.

    Args:
        path: the file; its name tells users, machines and devices apart.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = FileLock(path.with_suffix(".lock"))
        self._signature: tuple[int, int, int] | None = None
        self._offset = 0
        self._edges: set[float] = set()
        self._anchor_s = math.inf
        self.written_s = -math.inf
        """End of the last interval that this process wrote."""
        self.generation = 0
        self.intervals: list[BookedInterval] = []
        self.idle_w: float | None = None
        """Power of the card while it had no user, as runs on this machine have seen it."""

    @property
    def until_s(self) -> float:
        """Return the end of the last interval; minus infinity without one."""
        return self.intervals[-1].end_s if self.intervals else -math.inf

    def between(self, begin_s: float, end_s: float) -> list[BookedInterval]:
        """Return the intervals that lie at least partly between two instants."""
        first = bisect_right(self.intervals, begin_s, key=lambda each: each.end_s)
        last = bisect_left(self.intervals, end_s, key=lambda each: each.begin_s)
        return self.intervals[first:last]

    # -- writing ---------------------------------------------------------------------------

    def begin(self, time_s: float) -> None:
        """Begin a run of this process: from here on it can continue the book."""
        self._anchor_s = time_s
        self.mark(time_s)

    def mark(self, time_s: float) -> None:
        """Let an interval end here: a run begins or ends."""
        with self._locked() as usable:
            if usable:
                self._append([[time_s]])

    def extend(
        self,
        from_s: float,
        until_s: float,
        measure: Measure,
        energy_j: Counter = lambda begin_s, end_s: None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """Write what no process has written yet, up to an instant.

        A run that began before `from_s` has `patience_s` to write the time before. `energy_j` is
        the card's energy between any two instants of this run.
        """
        with self._locked() as usable:
            if not usable:
                return
            earlier = any(self.until_s < edge < from_s for edge in self._edges)
            if earlier and until_s < from_s + patience_s:
                return
            if from_s > self.until_s + GAP_S:
                self._restart()
            from_s = max(from_s, self.until_s)
            edges = sorted(edge for edge in self._edges if from_s < edge < until_s)
            scale = self._scale(from_s, until_s, energy_j)
            rows = []
            last = self.intervals[-1] if self.intervals else None
            for begin_s, end_s in zip([from_s, *edges], [*edges, until_s], strict=True):
                found = measure(begin_s, end_s) if end_s > begin_s else None
                if found is None:
                    continue
                absent = self._absent(begin_s, end_s, found, last)
                use = {pid: part for pid, part in found.use.items() if pid not in absent}
                found = found._replace(use=use, energy_j=scale * found.energy_j)
                last = BookedInterval(begin_s, end_s, found)
                rows.append(_row(last))
            self._append(rows)
            self.written_s = self.until_s
            if len(self.intervals) > MOST_INTERVALS:
                self._thin()

    def _scale(self, from_s: float, until_s: float, energy_j: Counter) -> float:
        """Return the factor that keeps the book at the counter, as this process reads it.

        Readings of two processes differ by what a counter gains between its updates. Without this
        the differences would add up, one each time another process continues the book.
        """
        first = bisect_left(self.intervals, self._anchor_s, key=lambda each: each.begin_s)
        if first == len(self.intervals):
            return 1.0
        whole_j = energy_j(self.intervals[first].begin_s, until_s)
        more_j = energy_j(from_s, until_s)
        if whole_j is None or more_j is None or more_j <= 0:
            return 1.0
        booked_j = math.fsum(each.interval.energy_j for each in self.intervals[first:])
        return min(max((whole_j - booked_j) / more_j, LEAST_SCALE), 1 / LEAST_SCALE)

    def _absent(
        self, begin_s: float, end_s: float, found: UseInterval, last: BookedInterval | None
    ) -> set[Hashable]:
        """Return processes that began after this interval, or whose run ended before it.

        Use is known per look, which the edges of runs divide.
        """
        absent: set[Hashable] = set()
        ended = {pid for each in self.intervals[-LATE:] for pid in each.booked}
        for pid in found.use:
            known = last is not None and last.end_s == begin_s and pid in last.interval.use
            if end_s in self._edges and not known:
                started_s = start_s(pid)
                if started_s is None or started_s + TICK_S > end_s:
                    absent.add(pid)
            elif pid in ended and start_s(pid) is None:
                absent.add(pid)
        return absent

    def take(
        self, pids: set[int], begin_s: float, end_s: float, fit: PowerFit | None, measure: Measure
    ) -> bool:
        """Book the part of a run's processes between two instants; False without a book."""
        with self._locked() as usable:
            if not usable:
                return False
            for i, each in enumerate(self.intervals):
                own = [p for p in each.interval.use if p in pids and p not in each.booked]
                left_s, right_s = max(begin_s, each.begin_s), min(end_s, each.end_s)
                if not own or right_s <= left_s:
                    continue
                part = 1.0
                if right_s - left_s < each.interval.duration_s:
                    inner = measure(left_s, right_s)
                    energy_j = None if inner is None else inner.energy_j
                    found = each.between(left_s, right_s, energy_j)
                    part = found.interval.energy_j / (each.interval.energy_j or 1.0)
                parts_j = energies_j(each.interval.without(each.booked), fit)
                own_j: dict[Hashable, float] = {pid: part * parts_j[pid] for pid in own}
                booked = {**each.booked, **own_j}
                self.intervals[i] = each._replace(booked=booked)
            self._rewrite()
            return True

    # -- the file --------------------------------------------------------------------------

    def read(self) -> None:
        """Read what other processes have written; costs one system call where they did not."""
        with suppress(OSError):
            facts = self._path.stat()
            if (facts.st_ino, facts.st_size, facts.st_mtime_ns) != self._signature:
                self._read()

    def _read(self) -> None:
        descriptor = os.open(self._path, os.O_RDONLY | NO_FOLLOW | CLOSE_ON_EXEC)
        with os.fdopen(descriptor, "rb") as file:
            facts = os.fstat(descriptor)
            if facts.st_uid != user_id() or facts.st_size > MOST_BYTES:
                self._clear()
                return
            head = file.readline()
            generation, idle_w = _head(head)
            if not generation:  # of another version, or damaged: the next line replaces it
                self._clear()
                return
            if generation != self.generation or not self._offset:
                self._clear()
                self.generation, self.idle_w, self._offset = generation, idle_w, len(head)
            file.seek(self._offset)
            data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offset += len(whole)
            self._signature = (facts.st_ino, facts.st_size, facts.st_mtime_ns)
            for line in whole.splitlines():
                self._add(line)

    def _add(self, line: bytes) -> None:
        with suppress(ValueError, TypeError, AttributeError, IndexError):
            row = json.loads(line)
            if len(row) == 1:
                self._edges.add(float(row[0]))
                return
            begin_s, end_s, energy_j = map(float, row[:3])
            parts: list[dict[Hashable, Any]] = [
                {int(pid): value for pid, value in part.items()} for part in row[3:6]
            ]
            use, weight, booked = parts
            if end_s > begin_s:
                interval = UseInterval(end_s - begin_s, energy_j, use, weight)
                self.intervals.append(BookedInterval(begin_s, end_s, interval, booked))

    def _append(self, rows: Sequence[Sequence[Any]]) -> None:
        """Append lines, under the lock and after `read`."""
        if not rows:
            return
        if not self._offset:
            self._rewrite(rows)
            return
        data = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows).encode()
        flags = os.O_WRONLY | NO_FOLLOW | CLOSE_ON_EXEC
        with suppress(OSError):  # a full disk: this run divides what it has read itself
            descriptor = os.open(self._path, flags)
            try:
                os.ftruncate(descriptor, self._offset)  # what a killed process left unfinished
                os.lseek(descriptor, self._offset, os.SEEK_SET)
                os.write(descriptor, data)
            finally:
                os.close(descriptor)
            self._read()

    def _rewrite(self, rows: Sequence[Sequence[Any]] = ()) -> None:
        """Replace the file; another generation tells the other processes."""
        edges = [[edge] for edge in sorted(self._edges)[-MOST_EDGES:]]
        head = ["book", VERSION, time.monotonic_ns(), self.idle_w]
        lines = [head, *edges, *map(_row, self.intervals), *rows]
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        with suppress(OSError):
            atomic_write(self._path, text, mode=0o600)
            self._read()

    def _restart(self) -> None:
        """Drop intervals that concern no run any more."""
        self._learn_idle(self.intervals)
        self.intervals.clear()
        self._edges = {edge for edge in self._edges if edge > self.until_s}
        self._rewrite()

    def _thin(self) -> None:
        """Merge pairs of older intervals that no edge parts."""
        half = MOST_INTERVALS // 2
        older, self.intervals = self.intervals[:half], self.intervals[half:]
        self._learn_idle(older)
        self.intervals[:0] = _paired(older, self._edges)
        self._rewrite()

    def _learn_idle(self, intervals: Sequence[BookedInterval]) -> None:
        self.idle_w = seen_idle_w(each.interval for each in intervals) or self.idle_w

    def _clear(self) -> None:
        self.intervals, self._edges, self._offset = [], set(), 0

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Lock the file and read it; False where that is not possible."""
        try:
            usable = self._lock.acquire(LOCK_WAIT_S) and _is_ours(self._lock.path)
        except OSError:
            usable = False
        try:
            if usable:
                self.read()
            yield usable
        finally:
            self._lock.release()


def seen_idle_w(intervals: Any) -> float | None:
    """Return the median power of a card while it had no user; None where that was too short."""
    quiet = [each for each in intervals if not each.use and each.duration_s > 0]
    if math.fsum(each.duration_s for each in quiet) < IDLE_S:
        return None
    powers_w = sorted(each.energy_j / each.duration_s for each in quiet)
    return float(powers_w[len(powers_w) // 2])


def start_s(pid: Hashable) -> float | None:
    """Return when a process began, on the machine's clock; None for one that has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    began_s = int(stat.rpartition(b")")[2].split()[19]) * TICK_S
    boot_s = time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else 0.0
    return began_s - (boot_s - time.monotonic() if boot_s else 0.0)


def _paired(intervals: Sequence[BookedInterval], edges: set[float]) -> list[BookedInterval]:
    found: list[BookedInterval] = []
    waiting: BookedInterval | None = None
    for each in intervals:
        joins = waiting is not None and waiting.end_s == each.begin_s not in edges
        if waiting is not None and joins:
            pids = dict.fromkeys((*waiting.booked, *each.booked))
            booked = {p: waiting.booked.get(p, 0.0) + each.booked.get(p, 0.0) for p in pids}
            interval = merged([waiting.interval, each.interval])
            found.append(BookedInterval(waiting.begin_s, each.end_s, interval, booked))
            waiting = None
            continue
        if waiting is not None:
            found.append(waiting)
        waiting = each
    return [*found, *([] if waiting is None else [waiting])]


def _row(each: BookedInterval) -> list[Any]:
    interval = each.interval
    numbers = [each.begin_s, each.end_s, interval.energy_j]
    return [*numbers, dict(interval.use), dict(interval.weight), dict(each.booked)]


def _head(line: bytes) -> tuple[int, float | None]:
    """Return generation and idle power of a book; generation 0 of what is not one."""
    try:
        name, version, generation, idle_w = json.loads(line)
        known = name == "book" and version == VERSION
        return (int(generation), None if idle_w is None else float(idle_w)) if known else (0, None)
    except (ValueError, TypeError):
        return 0, None


def _is_ours(path: Path) -> bool:
    return path.lstat().st_uid == user_id()
