"""Timeline of virtual cards, in memory or in a shared file: energy between any two instants."""

import math
import os
import struct
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol

from wattloop.core.errors import ConfigError
from wattloop.core.files import CLOSE_ON_EXEC, NO_FOLLOW, try_lock, unlock_and_close


class WorkOwner(NamedTuple):
    """A process, known by its number and the moment it began: numbers are used again."""

    pid: float
    began: float

    @property
    def gone(self) -> bool:
        """Return True when the process has ended; one without a begin is simulated, never ends."""
        return self.began > 0 and _began(int(self.pid)) != self.began


NO_OWNER = WorkOwner(0.0, 0.0)


def this_process() -> WorkOwner:
    pid = os.getpid()
    return WorkOwner(float(pid), _began(pid) or 0.0)


def process_start_s() -> float:
    """When this process began, in seconds of `time.monotonic()`, to 10 ms."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return time.monotonic()
    since_boot_s = (_began(os.getpid()) or 0.0) / os.sysconf("SC_CLK_TCK")
    asleep_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    return min(time.monotonic(), since_boot_s - asleep_s)


def _began(pid: int) -> float | None:
    """Kernel ticks at which a process began; None when it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else float(fields[19])


# What virtual cards did and when, so that energy between any two moments is exact.
#
# A card's life is a list of segments. Within one, power moves exponentially from `start_w` to
# `target_w`, as a card's regulators do, and temperature follows power; both have exact solutions.
# Processes share segments through a file, see `file_timeline`.


class ProcessLoad(NamedTuple):
    """Work of one process on a card, as in `Activity`, and the memory it holds there."""

    owner: WorkOwner
    compute: float
    memory: float
    busy: float
    overlap: float
    memory_b: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineSegment:
    """A card's state from `start_s` on.

    A segment records what one process does from now on: `compute` to `overlap` and
    `owner_memory_b` are those of its owner. What the other processes do follows from earlier
    segments and is in `loads`. `utilisation` and `target_w` are the card's, under all of them.

    `energy_j` is what it had used by then; `counter_zero_j` what it had used when its counter was
    last reset; `start_heat_w` the power that the heat sink felt (temperature above the room's,
    divided by the card's K/W). Clocks are the highest allowed; `*_locked` is 1 when they
    are locked. `fault` is one of `faults.Fault`.
    """

    start_s: float
    energy_j: float
    start_w: float
    target_w: float
    ramp_s: float
    clock_mhz: float
    compute_utilisation: float
    memory_utilisation: float
    compute: float
    memory: float
    busy: float
    limit_w: float
    max_clock_mhz: float
    memory_clock_mhz: float
    memory_used_b: float
    thermal_s: float
    start_heat_w: float
    overlap: float = 1.0
    clock_locked: float = 0.0
    memory_clock_locked: float = 0.0
    fault: float = 0.0
    fault_probability: float = 0.0
    counter_zero_j: float = 0.0
    owner_pid: float = 0.0
    owner_began: float = 0.0
    owner_memory_b: float = 0.0
    utilisation: float = 0.0
    loads: tuple[ProcessLoad, ...] = ()

    @property
    def held_b(self) -> float:
        """Memory in use: what `memory_used_b` pretends, or what the processes hold."""
        return max(self.memory_used_b, sum(load.memory_b for load in self.loads))

    @property
    def next_loads(self) -> tuple[ProcessLoad, ...]:
        """Loads of all processes, this segment's change included.

        An idle process stays as long as it holds memory. Without an owner, idle clears the card.
        """
        owner = WorkOwner(self.owner_pid, self.owner_began)
        if owner == NO_OWNER and self.busy <= 0:
            return ()
        others = tuple(load for load in self.loads if load.owner != owner)
        if self.busy <= 0 and self.owner_memory_b <= 0:
            return others
        load = (self.compute, self.memory, self.busy, self.overlap, self.owner_memory_b)
        return (*others, ProcessLoad(owner, *load))

    def power_w(self, at_s: float) -> float:
        decay = math.exp(-max(0.0, at_s - self.start_s) / self.ramp_s)
        return self.target_w + (self.start_w - self.target_w) * decay

    def energy_until_j(self, at_s: float) -> float:
        # E = P_target dt + (P_start - P_target) tau (1 - exp(-dt / tau))
        dt = at_s - self.start_s
        if dt <= 0:
            return self.energy_j + self.start_w * dt
        excess_j = (self.start_w - self.target_w) * self.ramp_s * -math.expm1(-dt / self.ramp_s)
        return self.energy_j + self.target_w * dt + excess_j

    def heat_w(self, at_s: float) -> float:
        """Power as the heat sink feels it at a moment: a low-pass filter of `thermal_s`."""
        # tau H' + H = P(t), P as in `power_w`: H = P_target + a exp(-dt/ramp) + b exp(-dt/tau)
        dt = max(0.0, at_s - self.start_s)
        a = (self.start_w - self.target_w) / (1 - self.thermal_s / self.ramp_s)
        b = self.start_heat_w - self.target_w - a
        return self.target_w + a * math.exp(-dt / self.ramp_s) + b * math.exp(-dt / self.thermal_s)

    def done_by(self, load: ProcessLoad) -> "TimelineSegment":
        """Return the same state, recorded as the work of `load`."""
        return replace(
            self,
            owner_pid=load.owner.pid,
            owner_began=load.owner.began,
            owner_memory_b=load.memory_b,
            compute=load.compute,
            memory=load.memory,
            busy=load.busy,
            overlap=load.overlap,
        )

    def next_segment(self, at_s: float, **changes: float) -> "TimelineSegment":
        """The segment that begins at `at_s` where this one has arrived."""
        return replace(
            self,
            start_s=at_s,
            energy_j=self.energy_until_j(at_s),
            start_w=self.power_w(at_s),
            start_heat_w=self.heat_w(at_s),
            loads=self.loads,
            **changes,
        )


class CardTimeline(Protocol):
    """Segments per card."""

    def segments(self, gpu: int) -> list[TimelineSegment]:
        """What is known of a card, oldest first; empty for one that was never touched."""
        ...

    def append(self, gpu: int, segment: TimelineSegment) -> None:
        """Add a segment; call it inside `changing`."""
        ...

    def changing(self) -> AbstractContextManager[object]:
        """Return a context that excludes other writers of segments."""
        ...


def segment_at(segments: list[TimelineSegment], at_s: float) -> TimelineSegment:
    """The segment that holds at a moment; the first one for times before it."""
    index = bisect_right(segments, at_s, key=lambda segment: segment.start_s)
    return segments[max(0, index - 1)]


class MemoryTimeline:
    """For one process; keeps the last segments of each card."""

    KEPT = 10_000

    def __init__(self) -> None:
        self._segments: dict[int, list[TimelineSegment]] = {}
        self._lock = threading.RLock()

    def segments(self, gpu: int) -> list[TimelineSegment]:
        return self._segments.get(gpu, [])

    def append(self, gpu: int, segment: TimelineSegment) -> None:
        kept = self._segments.setdefault(gpu, [])
        if len(kept) >= 2 * self.KEPT:
            # A new list: a reader may be walking the old one.
            kept = self._segments[gpu] = kept[-self.KEPT :]
        kept.append(segment)

    def changing(self) -> AbstractContextManager[object]:
        return self._lock


# Segments of virtual cards in a file, which all processes that see the cards share.
#
# Records are of fixed size, appended under a lock that the kernel releases when its holder dies; a
# torn last record is ignored.

PATIENCE_S = 2.0
"""No change takes as long. A caller that still waits restores a cap from a signal handler, in a
program that was interrupted while it held the lock and continues only after the handler.
"""


class FileTimeline:
    """For all processes that name the same file.

    Raises:
        ConfigError: the file cannot be used, or is not one of ours.
    """

    MAX_BYTES = 16_000_000

    def __init__(self, path: Path) -> None:
        self.path = path
        self._segments: dict[int, list[TimelineSegment]] = {}
        self._read_bytes = 0
        self._identity = (0, 0)
        self._lock = threading.RLock()

    def segments(self, gpu: int) -> list[TimelineSegment]:
        with self._thread_lock():
            self._catch_up()
            return self._segments.get(gpu, [])

    def append(self, gpu: int, segment: TimelineSegment) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | CLOSE_ON_EXEC | NO_FOLLOW
        fd = os.open(self.path, flags, 0o600)
        try:
            size = os.fstat(fd).st_size
            if size % _RECORD.size:
                os.ftruncate(fd, size - size % _RECORD.size)  # a writer died in mid-record
            if size > self.MAX_BYTES:
                self._compact(fd)
            os.write(fd, _packed(gpu, segment))
        finally:
            os.close(fd)

    @contextmanager
    def changing(self) -> Iterator[None]:
        with self._thread_lock():
            try:
                fd = os.open(self.path, os.O_RDWR | os.O_CREAT | CLOSE_ON_EXEC | NO_FOLLOW, 0o600)
            except OSError as problem:
                raise self._unusable(problem.strerror or str(problem)) from None
            try:
                try_lock(fd, PATIENCE_S)
                yield
            finally:
                unlock_and_close(fd)

    @contextmanager
    def _thread_lock(self) -> Iterator[None]:
        ours = self._lock.acquire(timeout=PATIENCE_S)
        try:
            yield
        finally:
            if ours:
                self._lock.release()

    def _compact(self, fd: int) -> None:
        """Forget the past, keep where each card is: segments carry their energy with them."""
        self._catch_up()
        latest = {gpu: segments[-1] for gpu, segments in self._segments.items()}
        os.ftruncate(fd, 0)
        for gpu, segment in latest.items():
            owner = (segment.owner_pid, segment.owner_began)
            for load in segment.loads:  # one record per process, its own last
                if load.owner != owner:
                    os.write(fd, _packed(gpu, segment.done_by(load)))
            os.write(fd, _packed(gpu, segment))

    def _catch_up(self) -> None:
        try:
            info = self.path.stat()
        except OSError:
            self._segments, self._read_bytes = {}, 0
            return
        identity = (info.st_dev, info.st_ino)
        if identity != self._identity or info.st_size < self._read_bytes:
            self._segments, self._read_bytes, self._identity = {}, 0, identity
        if info.st_size - self._read_bytes < _RECORD.size:
            return
        try:
            with self.path.open("rb") as file:
                file.seek(self._read_bytes)
                data = file.read()
        except OSError as problem:
            raise self._unusable(problem.strerror or str(problem)) from None
        whole = len(data) - len(data) % _RECORD.size
        for gpu, *values in _RECORD.iter_unpack(data[:whole]):
            if gpu not in _NUMBERS or not all(map(math.isfinite, values)):
                raise self._unusable("it holds something else than the state of virtual GPUs")
            known = self._segments.setdefault(int(gpu), [])
            segment = TimelineSegment(
                **dict(zip(_FIELDS, values, strict=True)), loads=known[-1].loads if known else ()
            )
            known.append(replace(segment, loads=segment.next_loads))
        self._read_bytes += whole

    def _unusable(self, why: str) -> ConfigError:
        return ConfigError(
            f"virtual GPU: {self.path}: {why}; name another file with WATTLOOP_VIRTUAL_STATE"
        )


_FIELDS = tuple(name for name in TimelineSegment.__dataclass_fields__ if name != "loads")
_RECORD = struct.Struct(f"<{1 + len(_FIELDS)}d")
_NUMBERS = frozenset(float(number) for number in range(1_024))
"""Numbers that a card can have; a record that begins with another is none of ours."""


def _packed(gpu: int, segment: TimelineSegment) -> bytes:
    return _RECORD.pack(gpu, *(getattr(segment, name) for name in _FIELDS))
