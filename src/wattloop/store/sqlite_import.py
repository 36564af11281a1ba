"""Import of ended runs into a SQLite store with the standard library alone.

Loading SQLAlchemy takes longer than everything else at the end of a short run, so the ordinary case
is done here: a store that is new or of the current version, and a run that is its own job and not
stored yet. Rows, transaction and locks are those of `journal_import`, to which all else is left.
`scripts/make_sqlite_schema.py` writes `schema.sql` from `schema`.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from wattloop.core.errors import StoreError
from wattloop.store.journal import FORMAT, journal_directory, lock_journal, read_journal
from wattloop.store.location import StoreLocation
from wattloop.store.run_record import (
    SENSELESS,
    Close,
    identity_fault,
    job_key_of,
    job_row,
    record_rows,
    rows_of_journal,
)

SCHEMA = Path(__file__).with_name("schema.sql")
TIMEOUT_S = 0.5
"""Time to wait for another writer; `journal_import` waits longer, and says who holds the store."""
Rows = dict[str, list[dict[str, Any]]]


def import_ended(store_location: str, close: Close) -> bool:
    """Import every unlocked journal; return False if one is left to `journal_import`."""
    try:
        place = StoreLocation.parse(store_location)
    except StoreError:
        return False
    if place.path is None or place.is_read_only:
        return False
    complete = True
    for path in sorted(journal_directory(place.location).glob("*.journal")):
        with lock_journal(path) as refusal:
            complete &= refusal is not None or _import(place.path, path, close)
    return complete


def _import(store: Path, path: Path, close: Close) -> bool:
    try:
        rows = _rows(path, close)
        if rows is None or not _insert(store, rows):
            return False
        path.unlink(missing_ok=True)
    except (OSError, sqlite3.Error, *SENSELESS):  # `journal_import` meets it too, and explains it
        return False
    return True


def _rows(path: Path, close: Close) -> Rows | None:
    """Return all rows of a journal's run; None if other runs of the store take part in them."""
    journal = read_journal(path)
    if journal is None or identity_fault(journal.header):
        return None
    if journal.header.get("format", FORMAT) > FORMAT:
        return None
    record, rows = rows_of_journal(journal, close)
    if job_key_of(record) != record.run_id:
        return None
    own = record_rows(record, record.run_id)
    job = job_row([{**own["runs"][0], **own["run_facts"][0]}])
    return {**own, "jobs": [{**job, "job_key": record.run_id}], **rows}


def _insert(store: Path, rows: Rows) -> bool:
    with closing(sqlite3.connect(store, timeout=TIMEOUT_S, isolation_level=None)) as connection:
        connection.execute("PRAGMA foreign_keys=ON")
        if not _tables(connection):
            connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("BEGIN IMMEDIATE")  # ends with COMMIT, or when the connection is closed
        if not _is_current(connection):
            return False
        run_id = rows["runs"][0]["run_id"]
        if connection.execute("SELECT 1 FROM runs WHERE run_id = ?", (run_id,)).fetchone():
            return False
        for table, values in rows.items():
            if values:
                names = ", ".join(f'"{name}"' for name in values[0])
                marks = ", ".join(f":{name}" for name in values[0])
                connection.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks})", values)
        connection.execute("COMMIT")
    return True


def _is_current(connection: sqlite3.Connection) -> bool:
    """Return True if the store has the tables of this version; an empty one gets them."""
    statements = SCHEMA.read_text("utf-8").removesuffix(";\n").split(";\n")
    present = _tables(connection)
    if not present:
        for statement in statements:
            connection.execute(statement)
        return True
    wanted = {s.split()[2] for s in statements if s.lstrip().startswith("CREATE TABLE")}
    if not wanted <= present:
        return False
    version = statements[-1].partition("VALUES ")[2]
    query = f"SELECT 1 FROM meta WHERE (key, value) = {version}"
    return connection.execute(query).fetchone() is not None


def _tables(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
