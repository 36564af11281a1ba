"""Incoming journals of other machines on this machine's disk, and their owners."""

import json
import os
import shutil
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from wattloop.core.errors import ConfigError, StoreUnwritable
from wattloop.core.files import CLOSE_ON_EXEC, atomic_write_json, is_same_file, try_lock
from wattloop.store.ingest.received_run import RunSource
from wattloop.store.journal import END, frames_in, next_frame_b
from wattloop.store.run_record import AGENT_KINDS, UNALLOCATED_KIND, RunRecord

# Files of an incoming journal.
#
# `RUN.part` holds the received bytes. `RUN.from` holds the sender, the time, and whether more will
# come. A process locks a part before it changes it, so several processes may receive.

ROOM_B = 512 * 1024 * 1024
"""Space that stays free on the disk: the database may be on it, too."""
LOOK_EVERY_S = 5.0
TAIL_B = 4096


@dataclass(frozen=True, slots=True)
class Origin:
    """Content of `RUN.from`."""

    node: str
    clock_offset_s: float | None
    first_wall_s: float
    is_trusted: bool = False
    final: bool = False

    @property
    def source(self) -> RunSource:
        return RunSource(self.node, self.clock_offset_s, self.is_trusted)


class IncomingJournal:
    """A part that this process has locked."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    @property
    def size_b(self) -> int:
        """Number of received bytes."""
        return os.fstat(self._descriptor).st_size

    def tail(self) -> int:
        """Return the checksum of the last bytes."""
        begin = max(0, self.size_b - TAIL_B)
        return zlib.crc32(os.pread(self._descriptor, TAIL_B, begin))

    def append(self, data: bytes) -> None:
        """Append bytes; durable when this returns. When the disk refuses, nothing has changed.

        Raises:
            StoreUnwritable: the disk is full, or broken.
        """
        before_b = self.size_b
        try:
            written = 0
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
            os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, before_b)
            raise StoreUnwritable(
                f"{self.path.parent}: {error.strerror}; make room on the server's disk ('df -h')"
            ) from error

    def empty(self) -> None:
        os.ftruncate(self._descriptor, 0)
        self._note().unlink(missing_ok=True)

    def origin(self) -> Origin | None:
        """The sender; None when unknown."""
        try:
            return Origin(**json.loads(self._note().read_text("utf-8")))
        except (OSError, TypeError, ValueError):
            return None

    def begin(self, source: RunSource) -> None:
        """Record the sender, before the first byte is written."""
        self._write(Origin(source.node, source.clock_offset_s, time.time(), source.is_trusted))

    def finish(self) -> Origin:
        known = self.origin() or Origin("", None, time.time())
        if not known.final:
            known = replace(known, final=True)
            self._write(known)
        return known

    def remove(self) -> None:
        """Remove the part after its import."""
        self.path.unlink(missing_ok=True)
        self._note().unlink(missing_ok=True)

    def _note(self) -> Path:
        return self.path.with_suffix(".from")

    def _write(self, origin: Origin) -> None:
        try:
            atomic_write_json(self._note(), asdict(origin), durable=True)
        except OSError as error:
            raise StoreUnwritable(f"{self.path.parent}: {error.strerror}") from error


class Incoming:
    """The folder of parts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._looked_s = -LOOK_EVERY_S
        self._is_roomy = True

    def path(self, run_id: str) -> Path:
        return self.folder / f"{run_id}.part"

    def parts(self) -> list[Path]:
        """Return the runs of all parts, in order."""
        return sorted(self.folder.glob("*.part"))

    def check_room(self) -> None:
        """Refuse a part before the disk is full.

        Raises:
            StoreUnwritable: too little space is free.
        """
        now_s = time.monotonic()
        if now_s - self._looked_s > LOOK_EVERY_S:
            self._looked_s = now_s
            self._is_roomy = shutil.disk_usage(self.folder).free > ROOM_B
        if not self._is_roomy:
            raise StoreUnwritable(
                f"{self.folder}: less than {ROOM_B // 1024**2} MiB are free; runs wait on their "
                "nodes until there is room ('df -h')"
            )

    @contextmanager
    def held(self, run_id: str, *, create: bool) -> Iterator[IncomingJournal | None]:
        """Lock the part of a run until the block ends; None when it does not exist."""
        path = self.path(run_id)
        if create:
            self.folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_APPEND | CLOSE_ON_EXEC | (os.O_CREAT if create else 0)
        while True:
            try:
                descriptor = os.open(path, flags, 0o600)
            except FileNotFoundError:
                yield None
                return
            try:
                with suppress(OSError):  # without locks, only one process is supported
                    try_lock(descriptor, None)
                if not is_same_file(descriptor, path):
                    continue  # imported and removed meanwhile
                yield IncomingJournal(path, descriptor)
                return
            finally:
                _leave(descriptor, path)


def _leave(descriptor: int, path: Path) -> None:
    """Unlock the part; remove it if it is empty."""
    try:
        if os.fstat(descriptor).st_size == 0 and is_same_file(descriptor, path):
            path.unlink(missing_ok=True)
            path.with_suffix(".from").unlink(missing_ok=True)
    finally:
        os.close(descriptor)


ENDED = -1


class IncomingCache:
    """Cache of the parts' senders and completeness, rebuilt from the files after a restart.
    Thread-safe.

    The caller holds the lock of the part.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._searched: dict[str, tuple[int, float]] = {}
        """Position up to which a part was searched for its end, or `ENDED` where it was found, and
        the size from which on another frame may be whole."""
        self._origins: dict[str, Origin] = {}

    def origin(self, run_id: str, part: IncomingJournal) -> Origin | None:
        """Return the sender; the file is read once."""
        with self._guard:
            known = self._origins.get(run_id)
        if known is None and (known := part.origin()) is not None:
            with self._guard:
                self._origins[run_id] = known
        return known

    def is_complete(self, run_id: str, part: IncomingJournal) -> bool:
        """Return True if no more data will come; only new frames are read."""
        with self._guard:
            begin, wanted_b = self._searched.get(run_id, (0, 0.0))
        size_b = part.size_b
        if begin == ENDED or size_b == 0:
            return begin == ENDED
        if size_b > begin and size_b >= wanted_b:
            found = _searched(part, begin)
            with self._guard:
                self._searched[run_id] = found
            if found[0] == ENDED:
                return True
        origin = self.origin(run_id, part)
        return origin is not None and origin.final

    def finish(self, run_id: str, part: IncomingJournal) -> None:
        """Record that the sender will send no more."""
        origin = part.finish()
        with self._guard:
            self._origins[run_id] = origin

    def complete(self) -> list[str]:
        """Return the parts that are known to be complete."""
        with self._guard:
            ended = {run_id for run_id, (at, _) in self._searched.items() if at == ENDED}
            final = {run_id for run_id, origin in self._origins.items() if origin.final}
        return sorted(ended | final)

    def forget(self, run_id: str) -> None:
        """Drop the entry: the part was imported, or begins again."""
        with self._guard:
            self._searched.pop(run_id, None)
            self._origins.pop(run_id, None)


def _searched(part: IncomingJournal, begin: int) -> tuple[int, float]:
    with part.path.open("rb") as file:
        file.seek(begin)
        data = file.read()
    at = 0
    for kind, _, end in frames_in(data):
        if kind == END:
            return ENDED, 0.0
        at = end
    return begin + at, begin + next_frame_b(data, at)


class ForeignRun(ConfigError):
    """A sender tried to write a run of another sender."""


def check_host(run_id: str, host: Any, source: RunSource) -> None:
    """Check that a run of `host` may come from this sender.

    Raises:
        ForeignRun: it may not.
    """
    if (source.node and host != source.node) or str(host) in source.not_for:
        raise ForeignRun(f"{run_id} is a run of another node")


def check_owner(run_id: str, origin: Origin | None, source: RunSource | None) -> None:
    """Check that the sender began the run; only the server's own token may continue any run.

    Raises:
        ForeignRun: another began it.
    """
    if source is None or (source.is_trusted and not source.node):
        return
    own = origin is not None and origin.node == source.node
    if not own or (not source.node and origin is not None and origin.is_trusted):
        raise ForeignRun(f"{run_id} is a run of another node")


def check_record(record: RunRecord, source: RunSource | None) -> None:
    """Check that the sender may read a stored run, and replace a provisional one.

    Raises:
        ForeignRun: it is another's.
    """
    if source is None:
        return
    check_host(record.run_id, record.host, source)
    if not source.is_trusted and record.kind in (*AGENT_KINDS, UNALLOCATED_KIND):
        raise ForeignRun(f"{record.run_id} is a run of a node")
