"""Segments of virtual cards in a file, which all processes that see the cards share.

Records are of fixed size, appended under a lock that the kernel releases when its holder dies; a
torn last record is ignored.
"""

import fcntl
import math
import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import astuple
from pathlib import Path

from wattloop.core.errors import ConfigError
from wattloop.virtual.timeline import Segment

__all__ = ["FileTimeline"]

PATIENCE_S = 2.0
"""No change takes as long. Whoever still waits restores a cap from a signal handler, in a program
that was interrupted while it held the lock and cannot go on before that is done.
"""
LOOK_EVERY_S = 0.0005


class FileTimeline:
    """For all processes that name the same file.

    Raises:
        ConfigError: the file cannot be used, or is not one of ours.
    """

    MAX_BYTES = 16_000_000

    def __init__(self, path: Path) -> None:
        self.path = path
        self._segments: dict[int, list[Segment]] = {}
        self._read_bytes = 0
        self._identity = (0, 0)
        self._lock = threading.RLock()

    def segments(self, gpu: int) -> list[Segment]:
        """What is known of a card, oldest first, by whoever changed it."""
        with self._alone():
            self._catch_up()
            return self._segments.get(gpu, [])

    def append(self, gpu: int, segment: Segment) -> None:
        """Add a segment to the file."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
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
    def _changing(self) -> Iterator[None]:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with self._alone():
            try:
                fd = os.open(self.path, flags, 0o600)
            except OSError as problem:
                raise self._unusable(problem.strerror or str(problem)) from None
            try:
                _lock_file(fd)
                yield
            finally:
                os.close(fd)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        ours = self._lock.acquire(timeout=PATIENCE_S)
        try:
            yield
        finally:
            if ours:
                self._lock.release()

    def changing(self) -> AbstractContextManager[object]:
        """A context in which no process adds segments."""
        return self._changing()

    def _compact(self, fd: int) -> None:
        """Forget the past, keep where each card is: segments carry their energy with them."""
        self._catch_up()
        latest = {gpu: segments[-1] for gpu, segments in self._segments.items()}
        os.ftruncate(fd, 0)
        for gpu, segment in latest.items():
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
            self._segments.setdefault(int(gpu), []).append(
                Segment(**dict(zip(_FIELDS, values, strict=True)))
            )
        self._read_bytes += whole

    def _unusable(self, why: str) -> ConfigError:
        return ConfigError(
            f"virtual GPU: {self.path}: {why}; name another file with WATTLOOP_VIRTUAL_STATE"
        )


_FIELDS = tuple(Segment.__dataclass_fields__)
_RECORD = struct.Struct(f"<{1 + len(_FIELDS)}d")
_NUMBERS = frozenset(float(number) for number in range(1_024))
"""Numbers that a card can have; a record that begins with another is none of ours."""


def _packed(gpu: int, segment: Segment) -> bytes:
    return _RECORD.pack(gpu, *astuple(segment))


def _lock_file(fd: int) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= give_up_s:
                return
            time.sleep(LOOK_EVERY_S)
        else:
            return
