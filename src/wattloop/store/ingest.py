"""Journals of other machines, piece by piece: in order, once, and never lost on the way.

A journal only grows, so what a machine has still to send is everything beyond what this end has:
each piece names the offset it belongs to, and a piece that does not fit is answered with the
offset that would. Sent twice, a piece changes nothing.
"""

import json
import os
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from wattloop.core.errors import ConfigError
from wattloop.store.database import Store
from wattloop.store.fold import Close, Folded, fold
from wattloop.store.frames import END, HEADER, frames_in, json_frame
from wattloop.store.journal import read_journal
from wattloop.store.live import INCOMING
from wattloop.store.runs import has_run

__all__ = ["LARGEST_PIECE_B", "Ingest", "Received", "Unexpected"]

LARGEST_PIECE_B = 8 * 1024 * 1024
STALE_S = 15 * 60.0
_RUN_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,99}")


class Unexpected(ConfigError):
    """A piece that does not follow what is there; `offset` is where the next one begins."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


@dataclass(frozen=True, slots=True)
class Received:
    """What this end has of a run.

    Attributes:
        offset: where the next piece begins.
        ended: the run is complete and in the store.
    """

    offset: int
    ended: bool


class Ingest:
    """Pieces of journals beside a store, folded into it as they become whole.

    Args:
        store: where runs end up.
        close: computes the end of a run whose machine was never heard of again.
    """

    def __init__(self, store: Store, close: Close) -> None:
        self._store = store
        self._close = close
        self._folder = store.journals / INCOMING
        self._locks: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()
        self._looked_at: dict[str, int] = {}

    def received(self, run_id: str) -> Received:
        """How far this end is with a run."""
        path = self._path(run_id)
        with self._store.reading() as connection:
            if has_run(connection, run_id):
                return Received(0, ended=True)
        return Received(path.stat().st_size if path.exists() else 0, ended=False)

    def take(self, run_id: str, offset: int, piece: bytes) -> Received:
        """Append a piece; durable when this returns.

        Raises:
            Unexpected: the piece belongs elsewhere.
            ConfigError: it is no piece of a journal, or of another run.
        """
        if len(piece) > LARGEST_PIECE_B:
            raise ConfigError(f"a piece has at most {LARGEST_PIECE_B} bytes, not {len(piece)}")
        path = self._path(run_id)
        with self._lock(run_id):
            known = self.received(run_id)
            if known.ended:
                return known
            if offset > known.offset:
                raise Unexpected(f"expected offset {known.offset}, not {offset}", known.offset)
            fresh = piece[known.offset - offset :]  # what came before is here already
            if known.offset == 0:
                _check_header(run_id, fresh)
            self._folder.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.write(fresh)
                file.flush()
                os.fsync(file.fileno())
            return self._settled(run_id, path)

    def abandoned(self, now_s: float | None = None) -> list[Folded]:
        """Fold runs that nothing was heard of for a quarter of an hour, as died."""
        now_s = time.time() if now_s is None else now_s
        found = []
        for path in self.parts():
            with self._lock(path.stem):
                if path.exists() and now_s - path.stat().st_mtime > STALE_S:
                    found.append(self._fold(path))
        return found

    def parts(self) -> Iterator[Path]:
        """Journals that are on their way."""
        return iter(sorted(self._folder.glob("*.part")))

    def _settled(self, run_id: str, path: Path) -> Received:
        size = path.stat().st_size
        if not self._has_end(run_id, path):
            return Received(size, ended=False)
        self._fold(path)
        return Received(size, ended=True)

    def _has_end(self, run_id: str, path: Path) -> bool:
        """Whether the end has come; looks only at frames that were not looked at before."""
        begin = self._looked_at.get(run_id, 0)
        with path.open("rb") as file:
            file.seek(begin)
            data = file.read()
        for kind, _, end in frames_in(data):
            if kind == END:
                self._looked_at.pop(run_id, None)
                return True
            self._looked_at[run_id] = begin + end
        return False

    def _fold(self, path: Path) -> Folded:
        """Into the store, as a journal of this one: the header names the sender's store."""
        journal = read_journal(path)
        final = self._store.journals / f"{path.stem}.journal"
        data = path.read_bytes()
        if journal is not None:
            settings = {**(journal.header.get("settings") or {}), "store": ""}
            _, _, end_of_header = next(frames_in(data))
            header = json_frame(HEADER, {**journal.header, "settings": settings})
            data = header + data[end_of_header:]
        final.write_bytes(data)
        folded = fold(self._store, final, self._close)
        path.unlink(missing_ok=True)
        return folded

    def _path(self, run_id: str) -> Path:
        if not _RUN_ID.fullmatch(run_id):
            raise ConfigError(f"{run_id!r} is no identifier of a run")
        return self._folder / f"{run_id}.part"

    def _lock(self, run_id: str) -> threading.Lock:
        with self._guard:
            return self._locks.setdefault(run_id, threading.Lock())


def _check_header(run_id: str, piece: bytes) -> None:
    for kind, payload, _ in frames_in(piece):
        try:
            header = json.loads(payload) if kind == HEADER else None
        except ValueError:
            header = None
        if isinstance(header, dict) and header.get("run_id") == run_id:
            return
        break
    raise ConfigError(f"the first piece of {run_id} does not begin with its header")
