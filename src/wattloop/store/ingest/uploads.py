"""Uploads of journals in chunks: in order, exactly once, durable."""

import json
import logging
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from wattloop.core.errors import ConfigError, RunSenseless, StoreError, StoreUnwritable
from wattloop.store.database import Store
from wattloop.store.ingest.received_run import RunSource, received_run, without_places
from wattloop.store.ingest.spool import (
    Incoming,
    IncomingCache,
    IncomingJournal,
    check_host,
    check_owner,
    check_record,
)
from wattloop.store.journal import FORMAT, HEADER, frames_in, read_journal
from wattloop.store.journal_import import insert_journal
from wattloop.store.run_record import Close, header_fault
from wattloop.store.runs import INCOMING, RunRecord, find_run, has_run

LARGEST_PIECE_B = 8 * 1024 * 1024
RUN_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,99}")


class WrongOffset(ConfigError):
    """A chunk that does not follow the received bytes; `offset` is where the next one begins."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


@dataclass(frozen=True, slots=True)
class Received:
    """State of a run on the server.

    Attributes:
        offset: where the next piece begins.
        ended: the run is complete and in the store.
        complete: all of it is here, and it waits for the store.
        tail: checksum of the last 4 KiB before `offset`; only where it was asked for.
    """

    offset: int
    ended: bool
    complete: bool = False
    tail: int | None = None


def check_name(run_id: str) -> None:
    """Check an identifier, which becomes a file name."""
    if not RUN_ID.fullmatch(run_id):
        raise ConfigError(f"{run_id!r} is not an identifier of a run")


def check_header(run_id: str, piece: bytes, source: RunSource) -> str:
    """Check that the first chunk begins with the header of that run, of a node that may send it.

    Returns the fault of that header: such a journal is quarantined.
    """
    for kind, payload, _ in frames_in(piece):
        try:
            header = json.loads(payload) if kind == HEADER else None
        except (ValueError, RecursionError):
            header = None
        if isinstance(header, dict) and header.get("run_id") == run_id:
            check_host(run_id, header.get("host"), source)
            return header_fault(header)
        break
    raise ConfigError(f"the first piece of {run_id} does not begin with its header")


# Protocol of uploads.
#
# A journal only grows, so a machine sends everything beyond the server's offset. Each chunk names
# its offset, and a chunk that does not fit is answered with the offset that would. A chunk that is
# sent twice changes nothing.
#
# Chunks are on the server's disk when they are acknowledged, whether the database is reachable or
# not. A complete run is imported into the store. Only then may its machine delete it.

STALE_S = 15 * 60.0
AWAY_S = 5.0
"""Time for which a database that did not answer is not asked again."""
REFUSED, REASON = ".refused", ".reason"
"""Suffixes of a quarantined journal, and of the file with the reason."""
MOST_REFUSED, LONGEST_REASON = 200, 1_000
_log = logging.getLogger("wattloop.ingest")


class RefusedJournal(NamedTuple):
    """A quarantined journal: it cannot be imported as it is.

    Attributes:
        node: that sent it; empty where that is not known.
    """

    run_id: str
    node: str
    reason: str
    refused_wall_s: float


class Ingest:
    """Received journals next to a store, imported as they become complete.

    Args:
        store: target of the imports.
        close: computes the end of a run whose machine disappeared.
    """

    def __init__(self, store: Store, close: Close) -> None:
        self._store = store
        self._close = close
        self._incoming = Incoming(store.journals / INCOMING)
        self._cache = IncomingCache()
        self._away_until_s = 0.0

    def received(self, run_id: str, source: RunSource | None = None) -> Received:
        check_name(run_id)
        with self._incoming.held(run_id, create=False) as part:
            if part is not None:
                if part.size_b:
                    check_owner(run_id, self._cache.origin(run_id, part), source)
                complete = self._cache.is_complete(run_id, part)
                return Received(part.size_b, ended=False, complete=complete, tail=part.tail())
        return Received(0, ended=self._is_stored(run_id, source))

    def append(
        self,
        run_id: str,
        offset: int,
        piece: bytes,
        source: RunSource | None = None,
        *,
        final: bool = False,
        restart: bool = False,
    ) -> Received:
        """Append a chunk; durable when this returns. After the last one, call `import_run`.

        Args:
            run_id: whose.
            offset: where the piece belongs.
            piece: the bytes.
            source: the sender; one with all rights by default.
            final: nothing will follow, even if the journal has no end.
            restart: forget what came before; a journal that is complete here is kept.

        Raises:
            WrongOffset: the piece belongs elsewhere.
            ForeignRun: the run is another node's.
            ConfigError: not a chunk of a journal, or of another run.
            RunSenseless: its header makes no sense; it was set aside.
            StoreUnwritable: the disk is full, or the owner of the run is unknown.
        """
        if len(piece) > LARGEST_PIECE_B:
            raise ConfigError(f"a piece has at most {LARGEST_PIECE_B} bytes, not {len(piece)}")
        check_name(run_id)
        source = RunSource(is_trusted=True) if source is None else source
        if not self._incoming.path(run_id).exists():
            if self._is_stored(run_id, source):
                return Received(0, ended=True)
            if self._is_away() and not source.is_trusted:
                raise StoreUnwritable("the store does not answer: whose run it is cannot be told")
        with self._incoming.held(run_id, create=True) as part:
            assert part is not None
            self._incoming.check_room()
            if part.size_b:
                check_owner(run_id, self._cache.origin(run_id, part), source)
            if self._cache.is_complete(run_id, part):
                return Received(part.size_b, ended=False, complete=True)
            if restart:
                self._cache.forget(run_id)
                part.empty()
            size_b = part.size_b
            if offset > size_b:
                raise WrongOffset(f"expected offset {size_b}, not {offset}", size_b)
            fresh = piece[size_b - offset :]  # the earlier bytes are already here
            fault = ""
            if size_b == 0:
                fault = check_header(run_id, fresh, source)
                part.begin(source)
            if fresh:
                part.append(fresh)
            if fault:
                self._quarantine(part, f"{run_id}: {fault}", source.node)
                raise RunSenseless(f"{run_id}: {fault}")
            if final:
                self._cache.finish(run_id, part)
            complete = self._cache.is_complete(run_id, part)
            return Received(part.size_b, ended=False, complete=complete)

    def import_run(self, run_id: str) -> Received:
        """Import a complete run into the store; `ended` is True if it is there.

        Raises:
            RunSenseless: it never will be; it was set aside.
        """
        with self._incoming.held(run_id, create=False) as part:
            if part is None:
                return Received(0, ended=self._is_stored(run_id, None))
            if not self._cache.is_complete(run_id, part) or self._is_away():
                return Received(part.size_b, ended=False, complete=False)
            return self._import(part)

    def complete(self, *, search: bool = False) -> list[str]:
        """Return runs that are complete and not imported; none while the store is unreachable.

        Args:
            search: look into every part, as after a restart; else name those that are known.
        """
        if search:  # also while it is unreachable: they are known when it is back
            for path in self._incoming.parts():
                with self._incoming.held(path.stem, create=False) as part:
                    if part is not None:
                        self._cache.is_complete(path.stem, part)
        return [] if self._is_away() else self._cache.complete()

    def abandoned(self, now_s: float | None = None) -> list[str]:
        """Import runs without news for a quarter of an hour, as crashed.

        When their machine comes back, its data replaces them.
        """
        now_s = time.time() if now_s is None else now_s
        found = []
        for path in self._incoming.parts():
            if not _is_older(path, now_s - STALE_S):
                continue
            with self._incoming.held(path.stem, create=False) as part:
                # checked again: it may have grown while we waited for the lock
                if part is None or not _is_older(path, now_s - STALE_S) or self._is_away():
                    continue
                silent = not self._cache.is_complete(path.stem, part)
                with suppress(RunSenseless):
                    if self._import(part, provisional=silent).ended:
                        found.append(path.stem)
        return found

    def parts(self) -> list[Path]:
        """Return journals that are being received."""
        return self._incoming.parts()

    def refused(self) -> list[RefusedJournal]:
        """Return quarantined journals, newest first."""
        found = []
        for path in self._incoming.folder.glob(f"*{REFUSED}"):
            with suppress(OSError):  # removed by an operator this moment
                found.append(_reason(path))
        return sorted(found, key=lambda one: one.refused_wall_s, reverse=True)[:MOST_REFUSED]

    def _is_stored(self, run_id: str, source: RunSource | None) -> bool:
        """Return True if the store has the complete run.

        False when the store cannot be asked: importing it again changes nothing.
        """
        aside = self._incoming.path(run_id).with_suffix(REFUSED)
        if aside.exists():
            raise RunSenseless(f"was refused before: {_reason(aside).reason}")
        if self._is_away():
            return False
        try:
            with self._store.reading() as connection:
                if not has_run(connection, run_id):
                    return False
            record = find_run(self._store, run_id)
        except StoreError as error:
            self._went_away(error)
            return False
        check_record(record, source)
        return not record.provisional

    def _import(self, part: IncomingJournal, *, provisional: bool = False) -> Received:
        """Import a run into this store; the part is removed after the commit."""
        run_id, size_b = part.path.stem, part.size_b
        origin = part.origin()
        source = RunSource(is_trusted=True) if origin is None else origin.source
        journal = read_journal(part.path)
        try:
            _check_journal(run_id, None if journal is None else journal.header)
            assert journal is not None  # has a sound header
            journal.header["settings"] = without_places(journal.header.get("settings"))
            check = partial(_arrives, source=source, provisional=provisional)
            insert_journal(self._store, journal, self._close, check)
        except RunSenseless as error:
            self._quarantine(part, str(error), source.node)
            raise
        except StoreError as error:
            self._went_away(error)
            return Received(size_b, ended=False, complete=True)
        except Exception as error:
            # an internal error with its content: other runs do not wait
            _log.exception("%s: cannot be stored", run_id)
            self._quarantine(part, f"{run_id}: {type(error).__name__}: {error}", source.node)
            raise RunSenseless(f"{run_id}: cannot be stored ({type(error).__name__})") from error
        self._cache.forget(run_id)
        part.remove()
        return Received(size_b, ended=True)

    def _quarantine(self, part: IncomingJournal, reason: str, node: str) -> None:
        run_id, aside = part.path.stem, part.path.with_suffix(REFUSED)
        _log.warning("%s: %s; kept as %s", run_id, reason, aside)
        why = RefusedJournal(run_id, node, reason[:LONGEST_REASON], time.time())
        with suppress(OSError):  # a full disk: the reason is in the log
            aside.with_suffix(REASON).write_text(json.dumps(why._asdict()), "utf-8")
        part.path.replace(aside)
        part.remove()
        self._cache.forget(run_id)

    def _is_away(self) -> bool:
        return time.monotonic() < self._away_until_s

    def _went_away(self, error: StoreError) -> None:
        if not self._is_away():
            _log.warning("the store does not answer, runs wait on disk: %s", error)
        self._away_until_s = time.monotonic() + AWAY_S


def _check_journal(run_id: str, header: dict[str, Any] | None) -> None:
    if header is None:
        raise RunSenseless(f"{run_id}: its beginning is damaged")
    if header.get("run_id") != run_id:
        raise RunSenseless(f"{run_id}: calls itself another run")
    fault = header_fault(header)
    if fault:
        raise RunSenseless(f"{run_id}: {fault}")
    if header.get("format", FORMAT) > FORMAT:
        raise RunSenseless(f"{run_id}: written by a newer Wattloop; upgrade the server")


def _reason(aside: Path) -> RefusedJournal:
    try:
        return RefusedJournal(**json.loads(aside.with_suffix(REASON).read_text("utf-8")))
    except (OSError, TypeError, ValueError):
        reason = "the server's log said why"
        return RefusedJournal(aside.stem, "", reason, aside.stat().st_mtime)


def _arrives(record: RunRecord, *, source: RunSource, provisional: bool) -> None:
    if source.node and record.host != source.node:
        raise ValueError(f"says that it is of another node than {source.node}")
    received_run(record, source, time.time())
    record.provisional = provisional


def _is_older(path: Path, wall_s: float) -> bool:
    try:
        return path.stat().st_mtime < wall_s
    except FileNotFoundError:
        return False
