"""The journal of a live run: an append-only file of checksummed frames that survives a crash."""

from __future__ import annotations

import json
import math
import os
import struct
import time
import zlib
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from wattloop.core.files import (
    CLOSE_ON_EXEC,
    NO_FOLLOW,
    data_folder,
    is_locked,
    is_same_file,
    try_lock,
    unlock_and_close,
)

# Frames: `length, crc32, kind` and a payload, in journals and between processes. A frame that was
# torn by a crash or a full disk fails its checksum and ends the readable part, so a reader never
# sees half a record.

HEADER, SAMPLES, EVENT, END = b"H", b"S", b"E", b"X"
FRAME = struct.Struct("<IIc")
LARGEST_FRAME_B = 64 * 1024 * 1024
"""A longer one is damage: frames are written once a second, and the longest is a run's header."""
_BLOCK = struct.Struct("<HHI")


class SampleBlock(NamedTuple):
    """Readings of one meter: `times_s[i]` belongs to `values[i*width:(i+1)*width]`."""

    feed: int
    width: int
    times_s: array[float]
    values: array[float]
    """Raw joules or watts per domain in the header's order; NaN marks a gap."""


def json_frame(kind: bytes, data: Any) -> bytes:
    """Pack a header, an event or an end."""
    return pack_frame(kind, json.dumps(data, separators=(",", ":"), default=str).encode())


def samples_frame(feed: int, width: int, times_s: array[float], values: array[float]) -> bytes:
    """Pack readings of stream number `feed`."""
    head = _BLOCK.pack(feed, width, len(times_s))
    return pack_frame(SAMPLES, head + times_s.tobytes() + values.tobytes())


def frames_in(data: bytes) -> Iterator[tuple[bytes, bytes, int]]:
    """Iterate over (kind, payload, end position) of every whole frame up to the first torn one."""
    offset = 0
    while offset + FRAME.size <= len(data):
        length, checksum, kind = FRAME.unpack_from(data, offset)
        begin = offset + FRAME.size
        payload = data[begin : begin + length]
        if len(payload) < length or zlib.crc32(payload) != checksum:
            return
        offset = begin + length
        yield kind, payload, offset


def next_frame_b(data: bytes, offset: int) -> float:
    """Return the size from which on `frames_in` finds a frame at `offset`, where it found none.

    Infinite for one that is damaged: nothing after it can be read.
    """
    if offset + FRAME.size > len(data):
        return offset + FRAME.size
    end = offset + FRAME.size + FRAME.unpack_from(data, offset)[0]
    return math.inf if end <= len(data) or end - offset > LARGEST_FRAME_B else end


def block_from(payload: bytes) -> SampleBlock:
    """Unpack the readings of a `SAMPLES` frame. Raises ValueError: not the bytes of a block."""
    if len(payload) < _BLOCK.size:
        raise ValueError("a block without its beginning")
    feed, width, count = _BLOCK.unpack_from(payload)
    if len(payload) != _BLOCK.size + 8 * count * (1 + width):
        raise ValueError(f"a block of {len(payload)} bytes for {count} x {width} values")
    times_s: array[float] = array("d")
    values: array[float] = array("d")
    split = _BLOCK.size + 8 * count
    times_s.frombytes(payload[_BLOCK.size : split])
    values.frombytes(payload[split:])
    return SampleBlock(feed, width, times_s, values)


def pack_frame(kind: bytes, payload: bytes) -> bytes:
    return FRAME.pack(len(payload), zlib.crc32(payload), kind) + payload


# The live journal of a run.
#
# A `JournalWriter` appends frames; a reader uses all up to the first torn one. The writer holds an
# exclusive `flock` on the file. An unlocked journal belongs to a run that has finished or crashed,
# and any process may import it into the store.
#
# Times are seconds on the machine's monotonic clock; the header relates them to the wall clock.

FORMAT = 1
"""Version of the frames' content. A reader refuses journals with a higher one."""
_SQLITE = b"SQLite format 3\0"
HEADER_LIMIT_B = 16 * 1024 * 1024
"""Upper limit of a header's length; a damaged one may state more."""


def journal_directory(store_location: str) -> Path:
    """Return the folder of a store's live journals: next to the SQLite file, or in the user's data
    folder.
    """
    if "://" in store_location and not store_location.startswith("sqlite"):
        return data_folder() / "journals"
    path = Path(store_location.removeprefix("sqlite:///")).expanduser()
    return path.parent / f"{path.name}.journals"


def is_other_file(store_location: str) -> bool:
    """Return whether a folder, or a file that is not SQLite's, is where the store would be."""
    if "://" in store_location and not store_location.startswith("sqlite"):
        return False
    try:
        with Path(store_location.removeprefix("sqlite:///")).expanduser().open("rb") as file:
            begin = file.read(len(_SQLITE))
    except IsADirectoryError:
        return True
    except OSError:
        return False
    return begin not in (b"", _SQLITE)


class Journal:
    """The readable part of a journal.

    Attributes:
        torn_bytes: bytes at the end that no longer make a frame.
    """

    def __init__(
        self,
        path: Path,
        header: dict[str, Any],
        blocks: list[SampleBlock] | None = None,
        events: list[dict[str, Any]] | None = None,
        end: dict[str, Any] | None = None,
    ) -> None:
        self.path = path
        self.header = header
        self.blocks = [] if blocks is None else blocks
        self.events = [] if events is None else events
        self.end = end
        self.torn_bytes = 0


def read_journal(path: Path) -> Journal | None:
    """Read everything up to the first torn frame; None without a complete header."""
    data = path.read_bytes()
    journal: Journal | None = None
    end_of_good = 0
    for kind, payload, end in frames_in(data):
        try:
            if kind == HEADER:
                header = json.loads(payload)
                if not isinstance(header, dict):
                    break
                journal = Journal(path, header)
            elif journal is None:
                return None
            elif kind == SAMPLES:
                journal.blocks.append(block_from(payload))
            elif kind == EVENT:
                journal.events.append(json.loads(payload))
            elif kind == END:
                journal.end = json.loads(payload)
        except (ValueError, RecursionError):  # a whole frame with invalid content
            break
        end_of_good = end
    if journal is not None:
        journal.torn_bytes = len(data) - end_of_good
    return journal


def read_header(path: Path) -> dict[str, Any] | None:
    """Read the header alone, however long the journal is; None without a complete one."""
    with path.open("rb") as file:
        head = file.read(FRAME.size)
        if len(head) < FRAME.size:
            return None
        data = head + file.read(min(FRAME.unpack(head)[0], HEADER_LIMIT_B))
    for kind, payload, _ in frames_in(data):
        try:
            header = json.loads(payload) if kind == HEADER else None
        except (ValueError, RecursionError):
            return None
        return header if isinstance(header, dict) else None
    return None


class JournalTail:
    """Reader of a journal that another process is writing, a few frames at a time."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._rest = b""
        self._wanted_b: float = 0

    def poll(self) -> Iterator[tuple[bytes, Any]]:
        """Return frames that have arrived since the last call: (kind, JSON or SampleBlock).

        A frame with invalid content is the end of what can be read, as for `read_journal`.
        """
        if math.isinf(self._wanted_b):  # damaged: what follows is not kept in memory
            return
        self._rest += self._file.read()
        used = 0
        for kind, payload, end in frames_in(self._rest):
            try:
                body = block_from(payload) if kind == SAMPLES else json.loads(payload)
            except (ValueError, RecursionError):
                self._rest, self._wanted_b = b"", math.inf
                return
            used = end
            yield kind, body
        self._wanted_b = next_frame_b(self._rest, used)
        self._rest = b"" if math.isinf(self._wanted_b) else self._rest[used:]

    def close(self) -> None:
        self._file.close()


def journal_is_live(path: Path, stale_after_s: float = 60.0) -> bool:
    """Return True if its writer still holds the lock."""
    try:
        return is_locked(path)
    except OSError:  # no locks on this file system: a writer appends at least once a second
        return time.time() - path.stat().st_mtime < stale_after_s


LOCK_WAIT_S = 1.0
BACKLOG_LIMIT_B = 16 * 1024 * 1024
"""Limit of the buffer while the disk refuses writes."""
RESERVE_B = 256 * 1024
"""Reserved disk space for the end of a run: ten times the result of a large node."""


class JournalWriter:
    """Writer of frames. Never raises after it was opened: measuring must not harm the program.

    When the disk refuses (full, read-only, unplugged), frames wait in memory and are retried at
    the next call; `fault` says what is wrong. A disk that is full at the end has space for the
    run's result all the same: it was reserved at the beginning.
    """

    path: Path
    fault: str | None
    dropped_frames: int
    _fd: int
    _reserve: _Reserve

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | CLOSE_ON_EXEC
        self._own(path, os.open(path, flags, 0o644), 0)
        try:
            # a process that checks whether it is live may hold it for a moment
            if not try_lock(self._fd, LOCK_WAIT_S):
                self.fault = f"{path}: cannot lock: another process holds it"
        except OSError as error:  # file systems without locks: the age decides instead
            self.fault = f"{path}: cannot lock: {error.strerror}"
        self._append(json_frame(HEADER, {"format": FORMAT, **header}))
        if self._backlog:
            reason = self.fault
            self._backlog.clear()
            self.close()
            path.unlink(missing_ok=True)
            raise OSError(reason)

    @classmethod
    def reopened(cls, path: Path) -> JournalWriter | None:
        """Continue a journal whose writer is gone; None if it has ended, is locked or unreadable.

        A torn frame at its end is cut off: frames after it could not be read.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | CLOSE_ON_EXEC)
        except OSError:
            return None
        try:
            if not try_lock(descriptor):
                raise ValueError("locked")
            data = path.read_bytes()
            kinds, end_of_good = b"", 0
            for kind, _, end in frames_in(data):
                kinds, end_of_good = kinds[:1] + kind, end
            if kinds[:1] != HEADER or kinds[-1:] == END:
                raise ValueError("ended, or without a header")
            os.ftruncate(descriptor, end_of_good)
        except (OSError, ValueError):
            unlock_and_close(descriptor)
            return None
        writer = cls.__new__(cls)
        writer._own(path, descriptor, end_of_good)
        return writer

    def samples(self, feed: int, width: int, times_s: array[float], values: array[float]) -> None:
        """Append readings of stream number `feed`."""
        self._append(samples_frame(feed, width, times_s, values))

    def event(self, event: dict[str, Any]) -> None:
        """Append an event: a window, a step, a lost device, a note."""
        self._append(json_frame(EVENT, event))

    def end(self, outcome: dict[str, Any]) -> bool:
        """Append the last frame; on a full disk into the reserved space, before all waiting frames.

        Returns:
            True if it is in the file. Frames that did not fit are counted as dropped.
        """
        if self._fd < 0:
            return False
        last = json_frame(END, outcome)
        self._append(last)
        if not self._backlog:
            return True
        self._reserve.release()
        waiting = list(self._backlog)
        events = [frame for frame in waiting if FRAME.unpack_from(frame)[2] == EVENT]
        for frames in (waiting, [*events, last], [last]):
            if self._write_all(frames):
                self.dropped_frames += len(waiting) - len(frames)
                self._backlog.clear()
                self._backlog_b = 0
                return True
        return False

    def sync(self) -> None:
        """Sync the file to disk, so that it survives a power failure."""
        try:
            getattr(os, "fdatasync", os.fsync)(self._fd)
        except OSError as error:
            self.fault = f"{self.path}: {error.strerror}"

    def close(self) -> None:
        """Close the file: from now on any process may import it."""
        if self._fd >= 0:
            self._drain()
            unlock_and_close(self._fd)
            self._fd = -1
        self._reserve.release()

    def abandon(self) -> None:
        """In a forked child: close the copy of the descriptor without writing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._reserve.forget()
        self._backlog.clear()

    def _own(self, path: Path, descriptor: int, size: int) -> None:
        self.path = path
        self.fault = None
        self.dropped_frames = 0
        self._fd = descriptor
        self._size = size
        self._backlog: deque[bytes] = deque()
        self._backlog_b = 0
        self._reserve = _Reserve(path.with_name(f".{path.name}.reserve"))

    def _append(self, frame: bytes) -> None:
        if self._fd < 0:
            return
        self._backlog.append(frame)
        self._backlog_b += len(frame)
        self._drain()
        while self._backlog_b > BACKLOG_LIMIT_B:
            self._backlog_b -= len(self._backlog.popleft())
            self.dropped_frames += 1

    def _drain(self) -> None:
        while self._backlog:
            frame = self._backlog[0]
            if not self._write(frame):
                return
            self._backlog.popleft()
            self._backlog_b -= len(frame)
        if self.fault is not None and "cannot lock" not in self.fault:
            self.fault = None

    def _write_all(self, frames: Sequence[bytes]) -> bool:
        """Write every frame, or leave the file as it was."""
        size = self._size
        if all(map(self._write, frames)):
            return True
        with suppress(OSError):
            os.ftruncate(self._fd, size)
        self._size = size
        return False

    def _write(self, frame: bytes) -> bool:
        try:
            written = os.write(self._fd, frame)
        except OSError as error:
            self.fault = f"{self.path}: {error.strerror}"
            return False
        if written == len(frame):
            self._size += written
            return True
        self.fault = f"{self.path}: disk full"
        try:
            os.ftruncate(self._fd, self._size)
        except OSError as error:
            self.fault = f"{self.path}: {error.strerror}"
        return False


class _Reserve:
    """Reserved space on the journal's disk: an unnamed file that ends with its process."""

    def __init__(self, path: Path) -> None:
        self._fd = -1
        with suppress(OSError):  # no space: the end is written if there is space by then
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | CLOSE_ON_EXEC | NO_FOLLOW, 0o600)
            path.unlink()
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._fd, 0, RESERVE_B)
            else:  # macOS and Windows
                os.write(self._fd, bytes(RESERVE_B))

    def release(self) -> None:
        """Free the space; forked children may still have copies of the descriptor."""
        if self._fd >= 0:
            with suppress(OSError):
                os.ftruncate(self._fd, 0)
            self.forget()

    def forget(self) -> None:
        """Close the copy in a forked child."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


BIRTH_S = 60.0
"""A journal younger than this may still be without header or lock."""


class Refusal(StrEnum):
    """Reason why a journal cannot be locked."""

    HELD = "locked by another process"
    GONE = "gone"


@contextmanager
def lock_journal(path: Path) -> Iterator[Refusal | None]:
    """Lock the journal inside the block; yield the reason if it cannot be locked."""
    descriptor, refusal = _opened(path)
    try:
        yield refusal if descriptor is None else _lock(descriptor, path)
    finally:
        if descriptor is not None:
            unlock_and_close(descriptor)


def _opened(path: Path) -> tuple[int | None, Refusal]:
    try:
        # its writer locks it before the first byte: an empty one may be a moment old
        if path.stat().st_size == 0 and _age_s(path) < BIRTH_S:
            return None, Refusal.HELD
        return os.open(path, os.O_RDWR | CLOSE_ON_EXEC), Refusal.HELD
    except FileNotFoundError:
        return None, Refusal.GONE
    except OSError:
        return None, Refusal.HELD


def _lock(descriptor: int, path: Path) -> Refusal | None:
    try:
        is_ours = try_lock(descriptor)
    except OSError:  # a file system without locks: a writer appends at least once a second
        is_ours = _age_s(path) >= BIRTH_S
    if not is_ours:
        return Refusal.HELD
    # else another process imported it meanwhile
    return None if is_same_file(descriptor, path) else Refusal.GONE


def _age_s(path: Path) -> float:
    return time.time() - path.stat().st_mtime
