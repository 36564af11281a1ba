"""Live runs, from the headers of locked journals."""

import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from wattloop.core.results import RunStatus
from wattloop.store.database import Store
from wattloop.store.journal import journal_is_live, read_header
from wattloop.store.journal_record import header_fault
from wattloop.store.runs import RunRecord

INCOMING = "incoming"
"""Folder below the journals for those of other machines; see `ingest`."""

QUIET_S = 60.0
"""A run of another machine is live while its last data is younger than this."""


def live_runs(store: Store) -> list[RunRecord]:
    """Return live runs, newest first; without a result, which only ended runs have."""
    found = []
    for path in _journals(store):
        record = _record(path)
        if record is not None:
            found.append(record)
    return sorted(found, key=lambda record: record.started_wall_s, reverse=True)


def live_journal(store: Store, run_id: str) -> tuple[RunRecord, Path] | None:
    """Return a live run and its journal; None when none has that name."""
    if "/" in run_id or run_id.startswith("."):
        return None
    own = store.journals / f"{run_id}.journal"
    for path in (own, store.journals / INCOMING / f"{run_id}.part"):
        record = _record(path)
        if record is not None and record.run_id == run_id:
            return record, path
    return None


def still_live(path: Path) -> bool:
    """Return True if a process writes it, or another machine sends it."""
    try:
        if path.suffix == ".part":
            return time.time() - path.stat().st_mtime < QUIET_S
        # a reader's lock on an empty journal could come before its writer's own
        return path.stat().st_size > 0 and journal_is_live(path)
    except OSError:  # imported into the store and removed
        return False


def _journals(store: Store) -> Iterator[Path]:
    yield from store.journals.glob("*.journal")
    yield from (store.journals / INCOMING).glob("*.part")


def _record(path: Path) -> RunRecord | None:
    if not still_live(path):
        return None
    try:
        return _read(path, path.stat().st_ino)
    except (OSError, LookupError, TypeError, ValueError):
        return None


@lru_cache(maxsize=4_096)  # a header never changes, and a page of jobs asks for all of them
def _read(path: Path, inode: int) -> RunRecord:
    """Parse a header; raises where it is not there yet, which is not cached."""
    del inode  # of another file with this path
    header = read_header(path)
    if header is None:
        raise LookupError(f"{path}: no header")
    fault = header_fault(header)
    if fault:
        raise ValueError(fault)
    known = {key: value for key, value in header.items() if value is not None}
    return RunRecord.from_dict({**known, "status": RunStatus.RUNNING.value})
