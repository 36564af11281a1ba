"""Writing the journal of a live run: frames that are whole or not there, whatever the disk does."""

from __future__ import annotations  # array[float] cannot be evaluated before Python 3.12

import fcntl
import os
import time
from array import array
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from wattloop.store.frames import END, EVENT, FRAME, HEADER, frames_in, json_frame, samples_frame
from wattloop.store.journal import FORMAT

__all__ = ["JournalWriter"]

BACKLOG_LIMIT_B = 16 * 1024 * 1024
"""How much is kept in memory while the disk refuses writes."""
RESERVE_B = 256 * 1024
"""Room on the disk for the end of a run: ten times what the result of a large node takes."""


class JournalWriter:
    """Appends frames. Never raises after it was opened: measuring must not harm the program.

    When the disk refuses (full, read-only, unplugged), frames wait in memory and are retried at
    the next call; `fault` says what is wrong. A disk that is full at the end has room for the
    run's result all the same: it was reserved at the beginning.
    """

    path: Path
    fault: str | None
    dropped_frames: int
    _fd: int
    _reserve: _Reserve

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

    def end(self, outcome: dict[str, Any]) -> bool:
        """Append the last frame; on a full disk into the reserved room, before all that waits.

        Returns:
            Whether it is in the file. Frames that did not fit are counted as dropped.
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
        self._reserve.release()

    def discard(self) -> None:
        """Close and remove, for a run that never began."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._reserve.release()
        self.path.unlink(missing_ok=True)

    def abandon(self) -> None:
        """In a forked child: drop our copy of the descriptor without writing."""
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
    """Room on the disk of a journal, held by a file without a name: it ends with its process."""

    def __init__(self, path: Path) -> None:
        self._fd = -1
        with suppress(OSError):  # no room: the end is written if there is room by then
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            path.unlink()
            os.posix_fallocate(self._fd, 0, RESERVE_B)

    def release(self) -> None:
        """Free the room; forked children may still have copies of the descriptor."""
        if self._fd >= 0:
            with suppress(OSError):
                os.ftruncate(self._fd, 0)
            self.forget()

    def forget(self) -> None:
        """Close our copy, in a forked child."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


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
