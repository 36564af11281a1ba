"""Import journals into the store: of finished runs, and of crashed ones."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from sqlalchemy import Connection, select

from wattloop.core.errors import RunSenseless, StoreError, StoreLocked, StoreUnwritable
from wattloop.core.results import RunStatus
from wattloop.store.database import Store
from wattloop.store.journal import FORMAT, Journal, Refusal, lock_journal, read_journal
from wattloop.store.location import StoreLocation
from wattloop.store.run_record import SENSELESS, Arriving, Close, identity_fault, rows_of_journal
from wattloop.store.runs import delete_run_in, insert_rows_in, insert_run_in, read_record
from wattloop.store.schema import runs

# Import: of runs that finished, and of runs whose writer crashed.
#
# The importer holds the journal's lock, so no journal is imported twice at once and no live run is
# imported. Everything of a run is one transaction, and the journal is removed after its commit. If
# the importer is killed, either the journal is still complete or the run is in the store, and
# importing again changes nothing.


class ImportStatus(StrEnum):
    """Status of a journal after an import."""

    IMPORTED = "folded"
    ALREADY = "already in the store"
    HELD = Refusal.HELD.value
    NEWER = "of a newer format"
    ELSEWHERE = "of another store"
    UNREADABLE = "unreadable"
    REFUSED = "refused by the store"
    GONE = Refusal.GONE.value


@dataclass(frozen=True, slots=True)
class ImportResult:
    """Result of importing one journal."""

    path: Path
    outcome: ImportStatus
    run_id: str | None = None
    note: str = ""


def import_journal(store: Store, path: Path, close: Close) -> ImportResult:
    """Import one journal and remove it.

    Raises:
        StoreError: the store refuses; the journal stays and nothing is lost.
    """
    with lock_journal(path) as refusal:
        if refusal is not None:
            return ImportResult(path, ImportStatus(refusal.value))
        try:
            journal = read_journal(path)
        except OSError as error:
            return ImportResult(path, ImportStatus.HELD, note=f"{path}: {error.strerror}")
        fault = "its beginning is damaged" if journal is None else identity_fault(journal.header)
        if journal is None or fault:
            return _quarantine(path, fault)
        if journal.header.get("format", FORMAT) > FORMAT:
            note = f"{path}: written by a newer Wattloop; upgrade with: pip install -U wattloop"
            return ImportResult(path, ImportStatus.NEWER, journal.header["run_id"], note)
        if _belongs_elsewhere(journal, store):
            return ImportResult(path, ImportStatus.ELSEWHERE, journal.header["run_id"])
        outcome = insert_journal(store, journal, close)
        return ImportResult(path, outcome, journal.header["run_id"], _removed(path))


def insert_journal(
    store: Store, journal: Journal, close: Close, arriving: Arriving | None = None
) -> ImportStatus:
    """Insert the content of a journal in one transaction; the file stays.

    Args:
        store: where to.
        journal: as it was read, with a header that names a run.
        close: computes the end of a run that has none.
        arriving: checks the record before it is inserted, and may change it.

    Raises:
        RunSenseless: it cannot be understood.
        StoreError: the store refuses.
    """
    run_id = journal.header["run_id"]
    try:
        with store.reading() as connection:
            if _is_stored(connection, run_id):
                return ImportStatus.ALREADY
        record, rows = rows_of_journal(journal, close, arriving)
        with store.writing() as connection:
            if _is_stored(connection, run_id) is False:
                delete_run_in(connection, run_id)
            if not insert_run_in(connection, record):
                return ImportStatus.ALREADY
            insert_rows_in(connection, rows)
    except SENSELESS as error:
        raise RunSenseless(
            f"{journal.path}: cannot be understood ({error}); it stays there"
        ) from error
    return ImportStatus.IMPORTED


def import_orphaned(store: Store, close: Close) -> list[ImportResult]:
    """Import every unlocked journal of this store. Cheap when there is none.

    A journal that cannot be imported does not block the others.

    Raises:
        StoreLocked, StoreUnwritable: nothing can be imported now; the journals stay.
    """
    if store.read_only or store.place.is_memory:
        return []
    results = []
    for path in sorted(store.journals.glob("*.journal")):
        try:
            results.append(import_journal(store, path, close))
        except (StoreLocked, StoreUnwritable):
            raise
        except StoreError as error:
            results.append(ImportResult(path, ImportStatus.REFUSED, note=str(error)))
    return results


def _is_stored(connection: Connection, run_id: str) -> bool | None:
    """Return True if the complete run is in the store, None when none of it is.

    False for a provisional run, whose machine disappeared: its data may still come.
    """
    query = select(runs.c.status, runs.c.body).where(runs.c.run_id == run_id)
    row = connection.execute(query).first()
    if row is None:
        return None
    return row[0] != RunStatus.DIED or not read_record(row[1]).provisional


def _belongs_elsewhere(journal: Journal, store: Store) -> bool:
    """Return True for a journal of another server: all servers share one folder."""
    settings = journal.header.get("settings")
    named = settings.get("store") if isinstance(settings, dict) else None
    if not store.place.is_server or not isinstance(named, str) or "://" not in named:
        return False
    try:
        return not store.place.same_server(StoreLocation.parse(named))
    except StoreError:
        return False


def _quarantine(path: Path, fault: str) -> ImportResult:
    """Move an unreadable journal aside for inspection."""
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
    return ImportResult(path, ImportStatus.UNREADABLE, note=note)


def _removed(path: Path) -> str:
    """Delete a journal that was imported; return a note when that is not permitted."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        return f"{path}: is in the store but cannot be deleted: {error.strerror}"
    return ""
