"""Tables of the store, the version of its schema, and migrations between versions.

A table is added by declaring it here on `metadata`: stores that lack it get it when they are
opened next, without a new version. Changing or removing a column needs a new version and a
migration: one function per version. All of them, and the creation of new tables, are one
transaction: a store is of the old version or of the new one, never between.

What queries need is a column; everything else is JSON text in `body`, as the run wrote it, so
that a field added later needs no migration.
"""

from collections.abc import Callable
from typing import Any

from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    inspect,
    select,
    text,
)

from wattloop.core.errors import StoreError, StoreTooNew

metadata = MetaData()
meta = Table("meta", metadata, Column("key", String, primary_key=True), Column("value", Text))


def _required(kind: Any, *names: str) -> list[Column[Any]]:
    return [Column(name, kind, nullable=False) for name in names]


def _optional(kind: Any, *names: str) -> list[Column[Any]]:
    return [Column(name, kind) for name in names]


def _run_id() -> Column[str]:
    """Return a column that belongs to a run and is deleted with it."""
    return Column("run_id", String, ForeignKey("runs.run_id", ondelete="CASCADE"), primary_key=True)


runs = Table(
    "runs",
    metadata,
    Column("run_id", String, primary_key=True),
    *_required(String, "name", "status", "kind", "host", "machine_id", "user_name"),
    *_optional(String, "job_id", "parent_run_id"),
    *_required(Double, "started_wall_s"),
    *_optional(Double, "duration_s", "energy_j", "uncertainty_j"),
    *_optional(Integer, "exit_code"),
    *_required(Boolean, "counted"),
    *_required(Text, "body"),
    *_optional(String, "job_key"),
    *_optional(Text, "quarantine"),
    *_optional(Double, "clock_offset_s", "samples_dropped_wall_s", "levels_dropped_wall_s"),
    Index("runs_by_start", "started_wall_s"),
    Index("runs_by_name", "name"),
    Index("runs_by_job", "job_id"),
    Index("runs_by_job_key", "job_key"),
    Index("runs_by_host", "host"),
)
"""`job_key` is the run's job in `jobs`; None in a store that no server has opened since it was
migrated. `quarantine` is the reason why its figures are not trusted."""
run_tags = Table(
    "run_tags",
    metadata,
    _run_id(),
    Column("key", String, primary_key=True),
    *_required(Text, "value"),
)
run_facts = Table(
    "run_facts",
    metadata,
    _run_id(),
    *_required(String, "cluster", "partition", "project"),
    *_optional(Boolean, "exclusive"),
    *_required(String, "device", "label"),
    *_required(Text, "insights"),
    *_required(String, "provenance"),
    *_required(Boolean, "complete"),
    *_optional(Double, "facility_j", "carbon_g", "efficiency"),
    *_optional(Integer, "job_nodes"),
    Index("run_facts_by_cluster", "cluster"),
    Index("run_facts_by_project", "project"),
)
"""Columns of a run that lists and totals need, without reading its body."""
jobs = Table(
    "jobs",
    metadata,
    Column("job_key", String, primary_key=True),
    *_required(String, "first_run_id"),
    *_optional(String, "job_id"),
    *_required(String, "name", "status", "kind", "host", "user_name"),
    *_required(Integer, "nodes"),
    *_optional(Integer, "nodes_expected"),
    *_required(Integer, "runs"),
    *_required(Double, "started_wall_s"),
    *_optional(Double, "duration_s", "energy_j", "uncertainty_j"),
    *_required(Boolean, "counted", "in_totals"),
    *_required(Integer, "quarantined"),
    *_required(String, "cluster", "partition", "project"),
    *_optional(Boolean, "exclusive"),
    *_required(String, "device", "label"),
    *_required(Text, "insights"),
    *_required(String, "provenance"),
    *_required(Boolean, "complete"),
    *_optional(Double, "facility_j", "carbon_g"),
    Index("jobs_by_start", "started_wall_s"),
)
"""One row per job, computed from its runs whenever one is inserted or deleted, so that a list of a
hundred thousand jobs needs no computation."""
deleted_totals = Table(
    "deleted_totals",
    metadata,
    Column("cluster", String, primary_key=True),
    Column("project", String, primary_key=True),
    Column("host", String, primary_key=True),
    Column("provenance", String, primary_key=True),
    *_required(Integer, "runs"),
    *_required(Double, "energy_j", "facility_j", "carbon_g"),
)
"""Totals of runs that were deleted, so that counters over the store never fall."""
nodes = Table(
    "nodes",
    metadata,
    Column("node", String, primary_key=True),
    *_required(Double, "heard_wall_s"),
    *_required(Text, "body"),
)
"""Last known state of each node, some seconds late."""
windows = Table(
    "windows",
    metadata,
    _run_id(),
    Column("position", Integer, primary_key=True),
    *_required(Integer, "window_id"),
    *_optional(Integer, "parent_id"),
    *_required(String, "name"),
    *_required(Double, "begin_s", "end_s"),
    *_optional(Double, "energy_j"),
    *_required(Text, "body"),
)
steps = Table(
    "steps",
    metadata,
    _run_id(),
    Column("position", Integer, primary_key=True),
    *_required(String, "kind"),
    *_required(Integer, "step_index"),
    *_required(Double, "begin_s", "end_s"),
    *_required(Text, "body"),
)
events = Table(
    "events",
    metadata,
    _run_id(),
    Column("position", Integer, primary_key=True),
    *_required(String, "type"),
    *_optional(Double, "time_s"),
    *_required(Text, "body"),
)
sample_chunks = Table(
    "sample_chunks",
    metadata,
    _run_id(),
    Column("feed", Integer, primary_key=True),
    Column("part", Integer, primary_key=True),
    Column("series", Integer, primary_key=True),  # -1: the times that all series of a feed share
    *_required(Double, "begin_s", "end_s"),
    *_required(Integer, "count"),
    *_required(LargeBinary, "payload"),
)
sample_levels = Table(
    "sample_levels",
    metadata,
    _run_id(),
    Column("feed", Integer, primary_key=True),
    Column("series", Integer, primary_key=True),
    Column("level_s", Integer, primary_key=True),
    Column("part", Integer, primary_key=True),
    *_required(Double, "begin_s", "end_s"),
    *_required(Integer, "count"),
    *_required(LargeBinary, "payload"),
)
experiments = Table(
    "experiments",
    metadata,
    Column("experiment_id", String, primary_key=True),
    *_required(String, "kind", "name", "status"),
    *_required(Double, "created_wall_s"),
    *_required(String, "fingerprint"),
    *_required(Text, "body"),
    Index("experiments_by_fingerprint", "fingerprint"),
)
trials = Table(
    "trials",
    metadata,
    Column(
        "experiment_id",
        String,
        ForeignKey("experiments.experiment_id", ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("key", String, primary_key=True),
    *_required(Integer, "number"),
    *_required(String, "status"),
    Column("run_id", String),  # no foreign key: a run is inserted after its trial has ended
    *_required(Text, "body"),
)


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
