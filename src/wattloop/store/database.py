"""Opens stores: a SQLite file by default, PostgreSQL by URL.

`reading` and `writing` are the only ways to a connection, each one transaction; whatever the
database reports comes out as a `StoreError` that says what to do.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool, StaticPool

from wattloop.core.errors import StoreUnwritable
from wattloop.store import versions
from wattloop.store.faults import needs_driver, refused_path, translated
from wattloop.store.journal import journal_directory
from wattloop.store.place import Place

__all__ = ["TIMEOUT_S", "Store", "open_store"]

TIMEOUT_S = 10.0
"""How long to wait for another process that holds the store."""

_SCHEMA_LOCK = 0x57617474  # any number that nobody else uses for PostgreSQL's advisory locks


class Store:
    """An open store. Safe to use from several threads; each transaction has its connection."""

    def __init__(self, place: Place, engine: Engine, *, read_only: bool = False) -> None:
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

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that only reads; sees one consistent state."""
        with self._transaction(write=False) as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that is committed when the block ends and undone when it raises."""
        if self.read_only:
            raise StoreUnwritable(
                f"{self.where}: is read-only here; allow writing with 'chmod u+w' on the file "
                "and its folder, or choose another store with --store or WATTLOOP_STORE"
            )
        with self._transaction(write=True) as connection:
            yield connection

    def close(self) -> None:
        """Let go of all connections."""
        self._engine.dispose()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _transaction(self, *, write: bool) -> Iterator[Connection]:
        try:
            with self._engine.connect() as plain:
                connection = plain.execution_options(wattloop_write=write)
                with connection.begin():
                    yield connection
        except SQLAlchemyError as error:
            raise translated(error, self.where) from error


def open_store(location: str | Path, timeout_s: float = TIMEOUT_S) -> Store:
    """The store at a path or URL (`runs.db`, `sqlite:///runs.db`, `postgresql://host/name`).

    Creates it, and the folders above it, when it is not there. A file that cannot be written is
    opened for reading.

    Raises:
        StoreUnwritable: the path is a directory, or cannot be created here.
        StoreTooNew: a newer Wattloop wrote it.
        StoreLocked: another process holds it for longer than `timeout_s`.
        StoreError: not a database, server not reachable, driver not installed.
    """
    place = Place.parse(str(location))
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
        if versions.is_current(connection, store.where):
            return
        if store.read_only and versions.is_readable(connection, store.where):
            return  # a store of an earlier release: it lacks tables that nobody filled
    if store.read_only:
        raise StoreUnwritable(
            f"{store.where}: holds no runs this version can read and cannot be written; allow "
            "writing with 'chmod u+w' on it, or choose another with --store or WATTLOOP_STORE"
        )
    if store.place.path is not None:
        with _translating(store), store._engine.connect() as connection:
            # remembered by the file; readers then never wait for a writer
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")
    with store.writing() as connection:
        if store.place.is_server:
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_SCHEMA_LOCK})"))
        versions.prepare(connection, store.where)


@contextmanager
def _translating(store: Store) -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        raise translated(error, store.where) from error


def _sqlite(path: Path, timeout_s: float) -> Engine:
    place = Place.parse(str(path))
    arguments: dict[str, Any] = {"timeout": timeout_s, "check_same_thread": False}
    url = f"sqlite:///{path}"
    if place.is_read_only:
        # a database in WAL mode needs its folder writable, unless it is declared unchanging
        rest = path.with_name(path.name + "-wal")
        unchanging = not (rest.exists() and rest.stat().st_size)
        quoted = path.absolute().as_uri().removeprefix("file://")
        url = f"sqlite:///file:{quoted}?mode=ro&uri=true" + ("&immutable=1" if unchanging else "")
    # no pool: nothing is kept open that a forked child could inherit and damage
    engine = create_engine(url, connect_args=arguments, poolclass=NullPool)
    return _with_own_transactions(engine)


def _memory() -> Engine:
    engine = create_engine(
        "sqlite://", connect_args={"check_same_thread": False}, poolclass=StaticPool
    )
    return _with_own_transactions(engine)


def _with_own_transactions(engine: Engine) -> Engine:
    """BEGIN IMMEDIATE for writers: two of them queue up instead of failing half-way."""

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


def _postgresql(place: Place, timeout_s: float) -> Engine:
    needs_driver("psycopg", place.label)
    milliseconds = max(1, round(timeout_s * 1_000))
    return create_engine(
        place.server_url(),
        connect_args={
            "connect_timeout": max(2, round(timeout_s)),
            "options": f"-c lock_timeout={milliseconds}",
        },
        pool_pre_ping=True,
    )
