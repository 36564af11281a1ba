"""The live journal of a run: an append-only file that survives whatever kills its writer.

A journal is a sequence of frames (see `frames`), of which a reader takes all up to the first torn
one. While its writer lives, it holds an exclusive `flock` on the file: a journal that nobody holds
belongs to a run that ended or died, and may be folded into the store by whoever comes next.

Times are seconds on the machine's monotonic clock; the header ties them to the time of day.
"""

from __future__ import annotations  # array[float] cannot be evaluated before Python 3.12

import fcntl
import json
import os
import struct
import time
from array import array
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wattloop.store.frames import (
    END,
    EVENT,
    FRAME,
    HEADER,
    SAMPLES,
    SampleBlock,
    block_from,
    frames_in,
    json_frame,
    samples_frame,
)

__all__ = [
    "END",
    "EVENT",
    "FORMAT",
    "HEADER",
    "SAMPLES",
    "Journal",
    "JournalTail",
    "JournalWriter",
    "SampleBlock",
    "journal_directory",
    "journal_is_live",
    "read_header",
    "read_journal",
]

FORMAT = 1
"""Version of the frames below. A reader refuses journals with a higher one."""

BACKLOG_LIMIT_B = 16 * 1024 * 1024
"""How much is kept in memory while the disk refuses writes."""


def journal_directory(store_location: str) -> Path:
    """Where live journals of a store are: beside the SQLite file, or in the user's data folder."""
    if "://" in store_location and not store_location.startswith("sqlite"):
        base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
        return Path(base) / "wattloop" / "journals"
    path = Path(store_location.removeprefix("sqlite:///")).expanduser()
    return path.parent / f"{path.name}.journals"


class Journal:
    """What could be read of a journal.

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


class JournalWriter:
    """Appends frames. Never raises after it was opened: measuring must not harm the program.

    When the disk refuses (full, read-only, unplugged), frames wait in memory and are retried at
    the next call; `fault` says what is wrong.
    """

    path: Path
    fault: str | None
    dropped_frames: int
    _fd: int

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._own(path, os.open(path, flags, 0o644), 0)
        try:
            _lock_own(self._fd)
        except OSError as error:  # file systems without locks: age decides instead
            self.fault = f"{path}: cannot lock: {error.strerror}"
        self._append(json_frame(HEADER, {"format": FORMAT, **header}))
        if self._backlog:
            reason = self.fault
            self.discard()
            raise OSError(reason)

    @classmethod
    def reopened(cls, path: Path) -> JournalWriter | None:
        """Go on with a journal whose writer is gone; None if it has ended, is held or unreadable.

        A torn frame at its end is cut off: nothing behind it could be read.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            data = path.read_bytes()
            kinds, end_of_good = b"", 0
            for kind, _, end in frames_in(data):
                kinds, end_of_good = kinds[:1] + kind, end
            if kinds[:1] != HEADER or kinds[-1:] == END:
                raise ValueError("ended, or without a header")
            os.ftruncate(descriptor, end_of_good)
        except (OSError, ValueError):
            os.close(descriptor)
            return None
        writer = cls.__new__(cls)
        writer._own(path, descriptor, end_of_good)
        return writer

    def samples(self, feed: int, width: int, times_s: array[float], values: array[float]) -> None:
        """Append readings of feed number `feed`."""
        self._append(samples_frame(feed, width, times_s, values))

    def event(self, event: dict[str, Any]) -> None:
        """Append something that happened: a window, a step, a lost device, a note."""
        self._append(json_frame(EVENT, event))

    def end(self, outcome: dict[str, Any]) -> None:
        """Append the last frame."""
        self._append(json_frame(END, outcome))

    def sync(self) -> None:
        """Ask the kernel to put what was written on the disk (survives a power loss)."""
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            self.fault = f"{self.path}: {error.strerror}"

    def close(self) -> None:
        """Let go of the file: from now on anybody may fold it."""
        if self._fd >= 0:
            self._drain()
            os.close(self._fd)
            self._fd = -1

    def discard(self) -> None:
        """Close and remove, for a run that never began."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self.path.unlink(missing_ok=True)

    def abandon(self) -> None:
        """In a forked child: drop our copy of the descriptor without writing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._backlog.clear()

    def _own(self, path: Path, descriptor: int, size: int) -> None:
        self.path = path
        self.fault = None
        self.dropped_frames = 0
        self._fd = descriptor
        self._size = size
        self._backlog: deque[bytes] = deque()
        self._backlog_b = 0

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


def read_journal(path: Path) -> Journal | None:
    """Everything up to the first torn frame; None when not even the header is there."""
    data = path.read_bytes()
    journal: Journal | None = None
    end_of_good = 0
    for kind, payload, end in frames_in(data):
        try:
            if kind == HEADER:
                journal = Journal(path, json.loads(payload))
            elif journal is None:
                return None
            elif kind == SAMPLES:
                journal.blocks.append(block_from(payload))
            elif kind == EVENT:
                journal.events.append(json.loads(payload))
            elif kind == END:
                journal.end = json.loads(payload)
        except (ValueError, RecursionError, struct.error):  # a whole frame with nonsense in it
            break
        end_of_good = end
    if journal is not None:
        journal.torn_bytes = len(data) - end_of_good
    return journal


def read_header(path: Path) -> dict[str, Any] | None:
    """The header alone, however long the journal is; None when it is not there or not whole."""
    with path.open("rb") as file:
        head = file.read(FRAME.size)
        if len(head) < FRAME.size:
            return None
        data = head + file.read(min(FRAME.unpack(head)[0], BACKLOG_LIMIT_B))
    for kind, payload, _ in frames_in(data):
        try:
            header = json.loads(payload) if kind == HEADER else None
        except (ValueError, RecursionError):
            return None
        return header if isinstance(header, dict) else None
    return None


class JournalTail:
    """Reads a journal that somebody else is writing, a few frames at a time."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._rest = b""

    def poll(self) -> Iterator[tuple[bytes, Any]]:
        """Frames that have arrived since the last call: (kind, JSON or SampleBlock)."""
        self._rest += self._file.read()
        used = 0
        for kind, payload, end in frames_in(self._rest):
            used = end
            yield kind, block_from(payload) if kind == SAMPLES else json.loads(payload)
        self._rest = self._rest[used:]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def journal_is_live(path: Path, stale_after_s: float = 60.0) -> bool:
    """Whether its writer still holds it."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError:  # no locks on this file system: a writer appends at least once a second
        return time.time() - path.stat().st_mtime < stale_after_s


def _lock_own(descriptor: int, patience_s: float = 1.0) -> None:
    """Lock a journal that was just created; somebody looking whether it is live may be first."""
    give_up_s = time.monotonic() + patience_s
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up_s:
                raise
            time.sleep(0.001)
