"""Puts journals into the store: of runs that ended, and of runs whose writer died.

Whoever folds holds the journal's lock, so that two never fold the same one and nobody folds a
live run. Everything of a run goes into one transaction, and the journal is removed only after
that is committed: killed at any moment, either the journal is still whole or the run is in the
store, and folding again changes nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sqlalchemy import Connection, select

from wattloop.core.errors import RunSenseless, StoreError, StoreLocked, StoreUnwritable
from wattloop.core.results import RunStatus
from wattloop.store.chunks import pack_samples
from wattloop.store.database import Store
from wattloop.store.details import sort_events
from wattloop.store.holding import Refusal, held
from wattloop.store.journal import FORMAT, Journal, read_journal
from wattloop.store.journal_record import Close, record_of
from wattloop.store.journal_shape import identity_fault
from wattloop.store.place import Place
from wattloop.store.runs import RunRecord, delete_run_in, insert_run_in, read_record
from wattloop.store.schema import runs

__all__ = ["Arriving", "Folded", "Outcome", "fold", "keep_journal", "recover"]

Arriving = Callable[[RunRecord], None]
"""Looks at a record before it is kept."""


class Outcome(StrEnum):
    """What became of a journal."""

    FOLDED = "folded"
    ALREADY = "already in the store"
    HELD = Refusal.HELD.value
    NEWER = "of a newer format"
    ELSEWHERE = "of another store"
    UNREADABLE = "unreadable"
    REFUSED = "refused by the store"
    GONE = Refusal.GONE.value


@dataclass(frozen=True, slots=True)
class Folded:
    """What became of one journal."""

    path: Path
    outcome: Outcome
    run_id: str | None = None
    note: str = ""


def fold(store: Store, path: Path, close: Close) -> Folded:
    """Put one journal into the store and remove it.

    Raises:
        StoreError: the store refuses; the journal stays and nothing is lost.
    """
    with held(path) as refusal:
        if refusal is not None:
            return Folded(path, Outcome(refusal.value))
        try:
            journal = read_journal(path)
        except OSError as error:
            return Folded(path, Outcome.HELD, note=f"{path}: {error.strerror}")
        fault = "its beginning is damaged" if journal is None else identity_fault(journal.header)
        if journal is None or fault:
            return _set_aside(path, fault)
        if journal.header.get("format", FORMAT) > FORMAT:
            note = f"{path}: written by a newer Wattloop; upgrade with: pip install -U wattloop"
            return Folded(path, Outcome.NEWER, journal.header["run_id"], note)
        if _belongs_elsewhere(journal, store):
            return Folded(path, Outcome.ELSEWHERE, journal.header["run_id"])
        outcome = keep_journal(store, journal, close)
        return Folded(path, outcome, journal.header["run_id"], _removed(path))


def keep_journal(
    store: Store, journal: Journal, close: Close, arriving: Arriving | None = None
) -> Outcome:
    """Put what a journal holds into the store, in one transaction; the file is not touched.

    Args:
        store: where to.
        journal: as it was read, with a header that names a run.
        close: computes the end of a run that has none.
        arriving: looks at the record before it is kept, and may change it.

    Raises:
        RunSenseless: it cannot be understood.
        StoreError: the store refuses.
    """
    try:
        return _keep(store, journal, close, arriving)
    except (
        *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
    ) as error:
        raise RunSenseless(
            f"{journal.path}: cannot be understood ({error}); it stays there"
        ) from error


def recover(store: Store, close: Close) -> list[Folded]:
    """Fold every journal of this store that nobody holds. Cheap when there is none.

    A journal that cannot be folded does not stand in the way of the others.

    Raises:
        StoreLocked, StoreUnwritable: nothing can be folded now; the journals stay.
    """
    if store.read_only or store.place.is_memory:
        return []
    results = []
    for path in sorted(store.journals.glob("*.journal")):
        try:
            results.append(fold(store, path, close))
        except (StoreLocked, StoreUnwritable):
            raise
        except StoreError as error:
            results.append(Folded(path, Outcome.REFUSED, note=str(error)))
    return results


def _keep(store: Store, journal: Journal, close: Close, arriving: Arriving | None) -> Outcome:
    run_id = journal.header["run_id"]
    with store.reading() as connection:
        if _is_kept(connection, run_id):
            return Outcome.ALREADY
    record = record_of(journal, close)
    if arriving is not None:
        arriving(record)
    samples = pack_samples(record.run_id, record.feeds, journal.blocks)
    happened = sort_events(journal.events)
    if happened.strange:
        record.notes.append(f"{happened.strange} of its events made no sense and were left out")
    with store.writing() as connection:
        if _is_kept(connection, run_id) is False:
            delete_run_in(connection, run_id)
        if not insert_run_in(connection, record):
            return Outcome.ALREADY
        samples.insert(connection)
        happened.insert(connection, record.run_id)
    return Outcome.FOLDED


def _is_kept(connection: Connection, run_id: str) -> bool | None:
    """Whether all of a run is there; None when nothing is.

    False for one that was kept because its machine fell silent: all of it may still come.
    """
    query = select(runs.c.status, runs.c.body).where(runs.c.run_id == run_id)
    row = connection.execute(query).first()
    if row is None:
        return None
    return row[0] != RunStatus.DIED or not read_record(row[1]).provisional


def _belongs_elsewhere(journal: Journal, store: Store) -> bool:
    """Journals of all servers share one folder; each goes to its own."""
    settings = journal.header.get("settings")
    named = settings.get("store") if isinstance(settings, dict) else None
    if not store.place.is_server or not isinstance(named, str) or "://" not in named:
        return False
    try:
        return not store.place.same_server(Place.parse(named))
    except StoreError:
        return False


def _set_aside(path: Path, fault: str) -> Folded:
    """Keep what cannot be read where a person may look at it."""
    aside = path.with_name(f"{path.name}.corrupt")
    note = (
        f"{path.name}: {fault}, so it cannot be told which run it is; kept as {aside}; delete it "
        "when it is of no use"
    )
    try:
        path.rename(aside)
        aside.with_name(f"{aside.name}.txt").write_text(note + "\n")
    except OSError as error:
        note = f"{path}: damaged, and cannot be moved aside: {error.strerror}"
    return Folded(path, Outcome.UNREADABLE, note=note)


def _removed(path: Path) -> str:
    """Delete a journal that is safely in the store; a note when that is not allowed."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        return f"{path}: is in the store but cannot be deleted: {error.strerror}"
    return ""
