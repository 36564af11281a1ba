"""Import journals into the store: of finished runs, and of crashed ones."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, select

from wattloop.core.errors import RunSenseless, StoreError, StoreLocked, StoreUnwritable
from wattloop.core.json_shape import shape_fault
from wattloop.core.results import RunStatus, WindowResult
from wattloop.store.database import Store
from wattloop.store.details import sort_events
from wattloop.store.journal import FORMAT, Journal, Refusal, lock_journal, read_journal
from wattloop.store.journal_shape import identity_fault
from wattloop.store.location import StoreLocation
from wattloop.store.runs import RunRecord, delete_run_in, insert_run_in, read_record
from wattloop.store.samples import pack_samples
from wattloop.store.schema import runs

# Conversion of a journal into a run record. A run is imported whatever is wrong with its journal:
# torn, invalid or missing parts are recorded in a note.

Close = Callable[[Journal], dict[str, Any]]
"""Computes the end of a run that has none, from its journal."""


def record_of(journal: Journal, close: Close) -> RunRecord:
    """Return the record of a journal's run, ended by `close` where it has no end."""
    header, notes = journal.header, []
    if journal.torn_bytes:
        notes.append(f"the last {journal.torn_bytes} bytes of its journal were torn and left out")
    end = journal.end
    result = _result(end)
    if end is None or (result is None and end.get("result") is not None):
        end, result = _closed(journal, close, notes)
    fields = {
        **{key: value for key, value in header.items() if key in _FROM_HEADER},
        "feeds": _feeds(journal),
        "status": _status(end),
        "ended_s": end.get("time_s"),
        "ended_wall_s": end.get("wall_s"),
        "exit_code": end.get("exit_code"),
        "signal": end.get("signal"),
        "accounting": end.get("accounting"),
        "counted": bool(end.get("counted", True)),
        "counted_by": end.get("counted_by"),
        "shared": shared if isinstance(shared := end.get("shared"), dict) else None,
        "notes": notes,
    }
    record = RunRecord(run_id=header["run_id"])
    for name, value in fields.items():
        if value is not None:
            setattr(record, name, value)
    record.result = result
    return record


_FROM_HEADER = frozenset(
    (
        *("name", "command", "kind", "started_wall_s", "started_s", "boot_id", "host"),
        *("machine_id", "pid", "user", "cwd", "python", "version", "settings", "tags"),
        *("job", "parent_run_id", "missing"),
    )
)


def _closed(
    journal: Journal, close: Close, notes: list[str]
) -> tuple[dict[str, Any], WindowResult | None]:
    """Return the end that `close` computes; a run is imported even when it cannot."""
    try:
        end = close(journal)
        result = _result(end)
    except Exception as error:  # noqa: BLE001 - a run with an odd journal is kept, not lost
        notes.append(f"its energy could not be computed: {type(error).__name__}: {error}")
        end, result = {}, None
    times_s = [block.times_s[-1] for block in journal.blocks if len(block.times_s)]
    last_s = max(times_s, default=journal.header.get("started_s", 0.0))
    lived_s = last_s - journal.header.get("started_s", last_s)
    wall_s = journal.header.get("started_wall_s", 0.0) + lived_s
    return {"status": RunStatus.DIED, "time_s": last_s, "wall_s": wall_s, **end}, result


def _result(end: dict[str, Any] | None) -> WindowResult | None:
    try:
        data = None if end is None else end.get("result")
        if data is None or shape_fault(data, WindowResult):
            return None
        return WindowResult.from_dict(data)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def _status(end: dict[str, Any]) -> RunStatus:
    try:
        return RunStatus(end.get("status", RunStatus.DIED))
    except ValueError:
        return RunStatus.DIED


def _feeds(journal: Journal) -> list[dict[str, Any]]:
    """Return the streams of the header, and those added during the run."""
    feeds = list(journal.header.get("feeds") or ())
    for event in journal.events:
        if isinstance(event, dict) and event.get("type") == "feeds":
            first = int(event.get("first", len(feeds)))
            feeds[first : first + len(event["feeds"])] = event["feeds"]
    return feeds


# Import: of runs that finished, and of runs whose writer crashed.
#
# The importer holds the journal's lock, so no journal is imported twice at once and no live run is
# imported. Everything of a run is one transaction, and the journal is removed after its commit. If
# the importer is killed, either the journal is still complete or the run is in the store, and
# importing again changes nothing.

Arriving = Callable[[RunRecord], None]
"""Checks a record before it is inserted."""


class Outcome(StrEnum):
    """Status of a journal after an import."""

    FOLDED = "folded"
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
    outcome: Outcome
    run_id: str | None = None
    note: str = ""


def import_journal(store: Store, path: Path, close: Close) -> ImportResult:
    """Import one journal and remove it.

    Raises:
        StoreError: the store refuses; the journal stays and nothing is lost.
    """
    with lock_journal(path) as refusal:
        if refusal is not None:
            return ImportResult(path, Outcome(refusal.value))
        try:
            journal = read_journal(path)
        except OSError as error:
            return ImportResult(path, Outcome.HELD, note=f"{path}: {error.strerror}")
        fault = "its beginning is damaged" if journal is None else identity_fault(journal.header)
        if journal is None or fault:
            return _set_aside(path, fault)
        if journal.header.get("format", FORMAT) > FORMAT:
            note = f"{path}: written by a newer Wattloop; upgrade with: pip install -U wattloop"
            return ImportResult(path, Outcome.NEWER, journal.header["run_id"], note)
        if _belongs_elsewhere(journal, store):
            return ImportResult(path, Outcome.ELSEWHERE, journal.header["run_id"])
        outcome = keep_journal(store, journal, close)
        return ImportResult(path, outcome, journal.header["run_id"], _removed(path))


def keep_journal(
    store: Store, journal: Journal, close: Close, arriving: Arriving | None = None
) -> Outcome:
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
    try:
        return _keep(store, journal, close, arriving)
    except (
        *(ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
    ) as error:
        raise RunSenseless(
            f"{journal.path}: cannot be understood ({error}); it stays there"
        ) from error


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
            results.append(ImportResult(path, Outcome.REFUSED, note=str(error)))
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


def _set_aside(path: Path, fault: str) -> ImportResult:
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
    return ImportResult(path, Outcome.UNREADABLE, note=note)


def _removed(path: Path) -> str:
    """Delete a journal that was imported; return a note when that is not permitted."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        return f"{path}: is in the store but cannot be deleted: {error.strerror}"
    return ""
