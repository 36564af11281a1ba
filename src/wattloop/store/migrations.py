"""Schema version of a store, and migrations between versions.

A migration is one function per version. All of them, and the creation of new tables, are one
transaction: a store is of the old version or of the new one, never between.
"""

from collections.abc import Callable

from sqlalchemy import Connection, inspect, select, text

from wattloop.core.errors import StoreError, StoreTooNew
from wattloop.store.schema import meta, metadata, runs

VERSION = 3
"""Version of the tables in `schema`. A store with a higher one is refused."""


def _from_1(connection: Connection) -> None:
    """Add columns for jobs of several nodes, for runs of other machines, and for retention.

    They are empty in runs that were there before: `fill_jobs` fills what it can.
    """
    added = {
        "runs": (
            ("job_key", "VARCHAR"),
            ("quarantine", "TEXT"),
            ("clock_offset_s", "DOUBLE PRECISION"),
            ("samples_dropped_wall_s", "DOUBLE PRECISION"),
            ("levels_dropped_wall_s", "DOUBLE PRECISION"),
        ),
        "run_facts": (("efficiency", "DOUBLE PRECISION"),),
    }
    present = set(inspect(connection).get_table_names())
    for table, columns in added.items():
        if table in present:
            for name, kind in columns:
                connection.execute(text(f"ALTER TABLE {table} ADD COLUMN {name} {kind}"))
    connection.execute(text("CREATE INDEX runs_by_job_key ON runs (job_key)"))
    connection.execute(text("CREATE INDEX runs_by_host ON runs (host)"))


def _from_2(connection: Connection) -> None:
    """Add the number of a job's nodes, in addition to the number of reporting ones; unknown for old
    jobs.
    """
    present = set(inspect(connection).get_table_names())
    for table, name in (("run_facts", "job_nodes"), ("jobs", "nodes_expected")):
        if table in present:
            connection.execute(text(f"ALTER TABLE {table} ADD COLUMN {name} INTEGER"))


MIGRATIONS: dict[int, Callable[[Connection], None]] = {1: _from_1, 2: _from_2}
"""From version N (the key) to N + 1, in the same transaction as everything else."""


def is_current(connection: Connection, where: str) -> bool:
    """Return True if no migration is needed; raises `StoreTooNew`, or `StoreError` for other
    files.
    """
    present = set(inspect(connection).get_table_names())
    if present and meta.name not in present and runs.name in present:
        raise StoreError(
            f"{where}: has a table 'runs' that is not Wattloop's; choose another place with "
            "--store or WATTLOOP_STORE"
        )
    return set(metadata.tables) <= present and _version(connection, where) == VERSION


def is_readable(connection: Connection, where: str) -> bool:
    """Return True if runs can be read without migration: later tables and columns may be
    missing.
    """
    present = set(inspect(connection).get_table_names())
    return {meta.name, runs.name} <= present and _version(connection, where) is not None


def prepare(connection: Connection, where: str) -> None:
    """Create missing tables and migrate old ones; call it inside a write transaction."""
    present = set(inspect(connection).get_table_names())
    version = _version(connection, where) if meta.name in present else None
    if version is not None:
        for step in range(version, VERSION):
            MIGRATIONS[step](connection)
    metadata.create_all(connection)
    if version != VERSION:
        connection.execute(meta.delete().where(meta.c.key == "schema_version"))
        connection.execute(meta.insert().values(key="schema_version", value=str(VERSION)))


def _version(connection: Connection, where: str) -> int | None:
    query = select(meta.c.value).where(meta.c.key == "schema_version")
    text = connection.execute(query).scalar()
    if text is None:
        return None
    if not str(text).isdecimal():
        raise StoreError(
            f"{where}: its schema version is {text!r}, which is not a number; the file was "
            "changed by something else: restore it from a copy or choose another with --store"
        )
    version = int(text)
    if version > VERSION:
        raise StoreTooNew(
            f"{where}: written with schema version {version}, this Wattloop reads up to "
            f"{VERSION}; upgrade with 'pip install -U wattloop' or choose another store with "
            "--store or WATTLOOP_STORE"
        )
    return version
