"""The folder of journals that wait for delivery: finished, growing, and refused ones."""

import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from wattloop.store.ingest.incoming import TAIL_B
from wattloop.store.ingest.uploads import LARGEST_PIECE_B
from wattloop.store.journal import frames_in, journal_is_live, lock_journal

DIED = ".died"
"""Suffix of a journal whose writer has crashed; no agent may continue it."""
THINNED = ".thinned"
SUFFIXES = (".journal", DIED, THINNED)
REFUSED = "refused"


class Waiting(NamedTuple):
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
        """Return the seconds since the last write."""
        return time.time() - self.path.stat().st_mtime

    def close(self) -> "Waiting":
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

    def waiting(self) -> list[Waiting]:
        """Return journals, oldest first: run identifiers sort by their beginning."""
        found: dict[str, Waiting] = {}
        for path in sorted(self._files(), key=lambda p: (p.stem, SUFFIXES.index(p.suffix))):
            try:
                size_b = path.stat().st_size
            except FileNotFoundError:
                continue
            if size_b:
                # of several, `.thinned` sorts last and is the one that counts
                found[path.stem] = Waiting(path.stem, path, size_b)
        return list(found.values())

    def remove(self, run_id: str) -> None:
        """Remove the journal of a stored run."""
        for suffix in SUFFIXES:
            (self.folder / f"{run_id}{suffix}").unlink(missing_ok=True)

    def set_aside(self, waiting: Waiting, reason: str) -> Path:
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
