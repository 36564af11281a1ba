"""Folder of journals that wait for delivery, and its limit on disk."""

import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from wattloop.core.files import atomic_write
from wattloop.measure.recovery import finalize_orphaned_run
from wattloop.store.ingest.spool import TAIL_B
from wattloop.store.ingest.uploads import LARGEST_PIECE_B
from wattloop.store.journal import (
    END,
    EVENT,
    HEADER,
    SAMPLES,
    frames_in,
    journal_is_live,
    json_frame,
    lock_journal,
    pack_frame,
    read_journal,
)

DIED = ".died"
"""Suffix of a journal whose writer has crashed; no agent may continue it."""
THINNED = ".thinned"
SUFFIXES = (".journal", DIED, THINNED)
REFUSED = "refused"


class QueuedJournal(NamedTuple):
    """A journal that is not stored yet."""

    run_id: str
    path: Path
    size_b: int

    @property
    def is_thinned(self) -> bool:
        """Return True when its samples were dropped to free disk space."""
        return self.path.suffix == THINNED

    @property
    def is_closed(self) -> bool:
        """Return True when no agent may continue the journal."""
        return self.path.suffix in (DIED, THINNED)

    def is_growing(self) -> bool:
        """Return True while its writer holds the lock."""
        return not self.is_closed and journal_is_live(self.path)

    def idle_s(self) -> float:
        return time.time() - self.path.stat().st_mtime

    def close(self) -> "QueuedJournal":
        """Mark the journal as crashed: from now on an agent begins a new run instead."""
        target = self.path.with_suffix(DIED)
        with lock_journal(self.path) as refusal:
            if refusal is None:
                self.path.replace(target)
                return self._replace(path=target)
        return self

    def frames(self, offset: int, most_b: int) -> bytes:
        """Return the next whole frames; the last one may be incomplete while a writer continues.

        An offset within a frame, from a server that was killed while it wrote, is gone on from.
        """
        data = self._read(offset, most_b)
        end = _last_end(data)
        if end == 0 and len(data) == most_b:
            data = self._read(offset, LARGEST_PIECE_B)
            end = _last_end(data)
        if end == 0 and data and offset:
            ends = [at for _, _, at in frames_in(self._read(0, offset + most_b))]
            end = max((at - offset for at in ends if at > offset), default=0)
        return data[:end]

    def has_tail(self, offset: int, checksum: int) -> bool:
        """Return True when the bytes before an offset equal the server's."""
        begin = max(0, offset - TAIL_B)
        data = self._read(begin, offset - begin)
        return len(data) == offset - begin and zlib.crc32(data) == checksum

    def _read(self, offset: int, most_b: int) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                return file.read(most_b)
        except FileNotFoundError:
            return b""


class Outbox:
    """The journals of one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def waiting(self) -> list[QueuedJournal]:
        """Return journals, oldest first: run identifiers sort by their beginning."""
        found: dict[str, QueuedJournal] = {}
        for path in sorted(self._files(), key=lambda p: (p.stem, SUFFIXES.index(p.suffix))):
            try:
                size_b = path.stat().st_size
            except FileNotFoundError:
                continue
            if size_b:
                # of several, `.thinned` sorts last and is the one that counts
                found[path.stem] = QueuedJournal(path.stem, path, size_b)
        return list(found.values())

    def remove(self, run_id: str) -> None:
        for suffix in SUFFIXES:
            (self.folder / f"{run_id}{suffix}").unlink(missing_ok=True)

    def set_aside(self, waiting: QueuedJournal, reason: str) -> Path:
        """Move a journal that the server refuses for good aside, for inspection."""
        aside = self.folder / REFUSED
        aside.mkdir(exist_ok=True)
        target = aside / waiting.path.name
        target.with_name(f"{target.name}.txt").write_text(reason + "\n", "utf-8")
        waiting.path.replace(target)
        return target

    def refused(self) -> list[Path]:
        """Return journals that were set aside, oldest first."""
        found = (self.folder / REFUSED).glob("*")
        return sorted((p for p in found if p.is_file()), key=lambda p: p.stat().st_mtime)

    def _files(self) -> Iterator[Path]:
        for suffix in SUFFIXES:
            yield from self.folder.glob(f"[!.]*{suffix}")


def _last_end(data: bytes) -> int:
    end = 0
    for _, _, end in frames_in(data):  # noqa: B007 - the last one counts
        pass
    return end


# Limit of journals on disk, and the order in which they are dropped.
#
# 1. journals that the server refused, oldest first;
# 2. samples of finished runs, oldest first: header, events and the energy by domain stay;
# 3. whole finished runs, oldest first, when even that is too much.
#
# Journals that grow are never touched: a day of ten domains at 1 Hz is 8 MB.

SMALL_B = 4_096
"""Of less than that, samples are not the bulk."""
NOTE = "its samples were dropped on the node to make room while the server was away"


class DroppedJournals(NamedTuple):
    """Data that were dropped."""

    refused: int = 0
    thinned: int = 0
    lost: int = 0


def make_room(outbox: Outbox, limit_b: int, idle_s: float = 600.0) -> DroppedJournals:
    """Drop the least valuable data until at most `limit_b` wait.

    Journals written to within `idle_s` are left alone: an agent may continue them.
    """
    waiting = outbox.waiting()
    aside = outbox.refused()
    used_b = sum(one.size_b for one in waiting) + sum(path.stat().st_size for path in aside)
    if used_b <= limit_b:
        return DroppedJournals()
    refused = thinned = lost = 0
    for path in aside:
        if used_b <= limit_b:
            break
        used_b -= path.stat().st_size
        path.unlink(missing_ok=True)
        refused += 1
    finished = [
        one for one in waiting if one.is_closed or (one.idle_s() > idle_s and not one.is_growing())
    ]
    for one in finished:
        if used_b <= limit_b:
            break
        if not one.is_thinned and one.size_b > SMALL_B:
            used_b -= one.size_b - thin(one).stat().st_size
            thinned += 1
    for one in finished:
        if used_b <= limit_b:
            break
        used_b -= _size_b(one)
        outbox.remove(one.run_id)
        lost += 1
    return DroppedJournals(refused, thinned, lost)


def thin(waiting: QueuedJournal) -> Path:
    """Replace a journal by one without samples; after a kill, one of both files is whole."""
    target = waiting.path.with_suffix(THINNED)
    atomic_write(target, _without_samples(waiting.path), durable=True)
    waiting.path.unlink(missing_ok=True)
    return target


def _without_samples(path: Path) -> bytes:
    kept, ended = [], False
    for kind, payload, _ in frames_in(path.read_bytes()):
        if kind == END:
            ended = True
            kept.append(json_frame(EVENT, {"type": "note", "text": NOTE}))
        if kind != SAMPLES:
            kept.append(pack_frame(kind, payload))
        if kind == HEADER and not ended and len(kept) > 1:
            break  # a second header: not ours
    journal = None if ended else read_journal(path)
    if journal is not None:
        # its writer died: the energy of what it read is worked out while the samples are there
        kept.append(json_frame(EVENT, {"type": "note", "text": NOTE}))
        kept.append(json_frame(END, finalize_orphaned_run(journal)))
    return b"".join(kept)


def _size_b(waiting: QueuedJournal) -> int:
    path = waiting.path.with_suffix(THINNED)
    return path.stat().st_size if path.exists() else waiting.size_b
