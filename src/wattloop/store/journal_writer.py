"""Writing the journal of a live run: frames that are whole or not there, whatever the disk does."""

from __future__ import annotations  # array[float] cannot be evaluated before Python 3.12

import fcntl
import os
import time
from array import array
from collections import deque
from pathlib import Path
from typing import Any

from wattloop.store.frames import END, EVENT, HEADER, frames_in, json_frame, samples_frame
from wattloop.store.journal import FORMAT

__all__ = ["JournalWriter"]

BACKLOG_LIMIT_B = 16 * 1024 * 1024
"""How much is kept in memory while the disk refuses writes."""


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
