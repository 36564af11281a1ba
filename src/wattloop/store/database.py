"""Open a store: a SQLite file by default, PostgreSQL by URL."""

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool, StaticPool

from wattloop.core.errors import RunSenseless, StoreError, StoreLocked, StoreUnwritable
from wattloop.store import schema
from wattloop.store.journal import journal_directory
from wattloop.store.location import StoreLocation

_ELSEWHERE = "choose another place with --store or WATTLOOP_STORE"


def refused_path(path: Path) -> None:
    """Create the folders above `path`; raise `StoreUnwritable` when it cannot hold a store."""
    if path.is_dir():
        raise StoreUnwritable(
            f"{path}: is a directory, a store is a file; use {path / 'runs.db'}, or {_ELSEWHERE}"
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnwritable(
            f"{path.parent}: cannot be created: {error.strerror}; {_ELSEWHERE}"
        ) from error
    if not path.exists() and not os.access(path.parent, os.W_OK | os.X_OK):
        raise StoreUnwritable(
            f"{path}: cannot be created, its folder is not writable; allow it with "
            f"'chmod u+w {path.parent}', or {_ELSEWHERE}"
        )


def translated(error: SQLAlchemyError, where: str) -> StoreError:
    if isinstance(error, DBAPIError):
        if isinstance(error.orig, sqlite3.Error):
            return _from_sqlite(error.orig, where)
        return _from_postgresql(error, where)
    return StoreError(f"{where}: {error}")


def _from_sqlite(error: sqlite3.Error, where: str) -> StoreError:
    # the high bits only extend the primary code
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreLocked(
            f"{where}: another process has been writing to it for too long; try again, see who "
            f"holds it with 'fuser {where}', or {_ELSEWHERE}"
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return StoreUnwritable(
            f"{where}: cannot be opened for writing ({error}); check the permissions of the file "
            f"and its folder, or {_ELSEWHERE}"
        )
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
        reason = os.strerror(errno.ENOSPC) if code == sqlite3.SQLITE_FULL else str(error)
        return StoreUnwritable(
            f"{where}: {reason}; make room on the disk ('df -h'), or {_ELSEWHERE}"
        )
    if code == sqlite3.SQLITE_NOTADB:
        return StoreError(f"{where}: is not a SQLite database; {_ELSEWHERE}")
    if code == sqlite3.SQLITE_CORRUPT:
        return StoreError(
            f"{where}: is damaged ({error}); save what can be read with "
            f"'sqlite3 {where} .recover | sqlite3 repaired.db', or {_ELSEWHERE}"
        )
    return StoreError(f"{where}: {error}; {_ELSEWHERE}")


def _from_postgresql(error: DBAPIError, where: str) -> StoreError:
    state = getattr(error.orig, "sqlstate", None) or ""
    reason = str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else "no answer"
    if state in ("55P03", "40P01", "57014"):  # lock_not_available, deadlock, statement timeout
        return StoreLocked(
            f"{where}: another session holds the tables for too long ({reason}); try again, or "
            "see who with: SELECT pid, query FROM pg_stat_activity"
        )
    if state in ("25006", "42501"):  # read-only transaction, insufficient privilege
        return StoreUnwritable(
            f"{where}: {reason}; grant it with: GRANT CREATE, USAGE ON SCHEMA public TO the user "
            "in the URL"
        )
    if state.startswith("53"):  # disk full, out of memory, too many connections
        return StoreUnwritable(f"{where}: {reason}; make room on the server")
    if state.startswith(("22", "23")):  # numbers out of range, invalid texts
        return RunSenseless(f"{where}: cannot hold it: {reason}")
    if state == "3D000" or "does not exist" in reason:
        return StoreError(f"{where}: {reason}; create it with: createdb NAME")
    if not state or state.startswith(("08", "28")):
        return StoreError(
            f"{where}: cannot be reached: {reason}; check host, port, user and password, and that "
            "the server runs (pg_isready)"
        )
    return StoreError(f"{where}: {reason}")


# Connections: `reading` and `writing` are the only ways to one, each a transaction. Errors of the
# database become a `StoreError` with a remedy.

TIMEOUT_S = 10.0
"""Time to wait for another process that has locked the store."""
_SCHEMA_LOCK = 0x57617474  # an arbitrary number for PostgreSQL's advisory locks


class Store:
    """An open store. Safe to use from several threads; each transaction has its connection."""

    def __init__(self, place: StoreLocation, engine: Engine, *, read_only: bool = False) -> None:
        self.place = place
        self.read_only = read_only
        self._engine = engine

    @property
    def where(self) -> str:
        """Path or URL without password, for messages."""
        return self.place.label

    @property
    def journals(self) -> Path:
        """Folder of the journals that belong to this store."""
        return journal_directory(self.place.location)

    def outputs_folder(self, experiment_id: str) -> Path:
        """Return the folder of what the programs of an experiment print."""
        journals = self.journals
        return journals.with_name(journals.name.replace("journals", "trials")) / experiment_id

    def reading(self) -> AbstractContextManager[Connection]:
        """Open a transaction that only reads and sees one consistent state."""
        return self._transaction(write=False)

    def writing(self) -> AbstractContextManager[Connection]:
        """Open a transaction that is committed when the block ends and rolled back when it
        raises.
        """
        if self.read_only:
            raise StoreUnwritable(
                f"{self.where}: is read-only here; allow writing with 'chmod u+w' on the file "
                "and its folder, or choose another store with --store or WATTLOOP_STORE"
            )
        return self._transaction(write=True)

    def close(self) -> None:
        self._engine.dispose()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _transaction(self, *, write: bool) -> Iterator[Connection]:
        with self._connected() as plain:
            connection = plain.execution_options(wattloop_write=write)
            with connection.begin():
                yield connection

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        try:
            with self._engine.connect() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise translated(error, self.where) from error


def open_store(location: str | Path, timeout_s: float = TIMEOUT_S) -> Store:
    """Open the store at a path or URL (`runs.db`, `sqlite:///runs.db`, `postgresql://host/name`).

    Creates it, and the folders above it, when it does not exist. A file that cannot be written is
    opened for reading.

    Raises:
        StoreUnwritable: the path is a directory, or cannot be created here.
        StoreTooNew: a newer Wattloop wrote it.
        StoreLocked: another process holds it for longer than `timeout_s`.
        StoreError: not a database, server not reachable, driver not installed.
    """
    place = StoreLocation.parse(str(location))
    if place.path is not None:
        refused_path(place.path)
        store = Store(place, _sqlite(place.path, timeout_s), read_only=place.is_read_only)
    elif place.is_memory:
        store = Store(place, _memory())
    else:
        store = Store(place, _postgresql(place, timeout_s))
    try:
        _prepare(store)
    except BaseException:
        store.close()
        raise
    return store


def _prepare(store: Store) -> None:
    with store.reading() as connection:
        if schema.is_current(connection, store.where):
            return
        if store.read_only and schema.is_readable(connection, store.where):
            return  # a store of an earlier release: it lacks tables that were never filled
    if store.read_only:
        raise StoreUnwritable(
            f"{store.where}: holds no runs this version can read and cannot be written; allow "
            "writing with 'chmod u+w' on it, or choose another with --store or WATTLOOP_STORE"
        )
    if store.place.path is not None:
        with store._connected() as connection:
            # remembered by the file; readers then never wait for a writer
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")
    with store.writing() as connection:
        if store.place.is_server:
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_SCHEMA_LOCK})"))
        schema.prepare(connection, store.where)


def _sqlite(path: Path, timeout_s: float) -> Engine:
    place = StoreLocation.parse(str(path))
    arguments: dict[str, Any] = {"timeout": timeout_s, "check_same_thread": False}
    url = f"sqlite:///{path}"
    if place.is_read_only:
        # a database in WAL mode needs a writable folder, unless it is opened as immutable
        rest = path.with_name(path.name + "-wal")
        unchanging = not (rest.exists() and rest.stat().st_size)
        quoted = path.absolute().as_uri().removeprefix("file://")
        url = f"sqlite:///file:{quoted}?mode=ro&uri=true" + ("&immutable=1" if unchanging else "")
    # no pool: a forked child could inherit and damage an open connection
    engine = create_engine(url, connect_args=arguments, poolclass=NullPool)
    return _with_own_transactions(engine)


def _memory() -> Engine:
    engine = create_engine(
        "sqlite://", connect_args={"check_same_thread": False}, poolclass=StaticPool
    )
    return _with_own_transactions(engine)


def _with_own_transactions(engine: Engine) -> Engine:
    """Use BEGIN IMMEDIATE for writers: two of them queue up instead of failing half-way."""

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # the driver shall not begin transactions by itself
        connection.execute("PRAGMA foreign_keys=ON")

    @event.listens_for(engine, "begin")
    def _begun(connection: Connection) -> None:
        write = connection.get_execution_options().get("wattloop_write")
        if write is not None:
            connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def _postgresql(place: StoreLocation, timeout_s: float) -> Engine:
    if find_spec("psycopg") is None:
        raise StoreError(
            f"{place.label}: PostgreSQL needs the driver psycopg; install it with: "
            "pip install 'wattloop[postgres]'"
        )
    milliseconds = max(1, round(timeout_s * 1_000))
    return create_engine(
        place.server_url(),
        connect_args={
            "connect_timeout": max(2, round(timeout_s)),
            "options": f"-c lock_timeout={milliseconds}",
        },
        pool_pre_ping=True,
    )
