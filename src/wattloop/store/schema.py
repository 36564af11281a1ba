"""The tables of a store, their version, and how an old store becomes a new one.

A table is added by declaring it here on `metadata`: stores that lack it get it when they are
opened next, without a new version. Changing or removing a column needs a new `VERSION` and a
function in `MIGRATIONS`.

What queries need is a column; everything else is JSON text in `body`, as the run wrote it, so
that a field added later needs no migration.
"""

from collections.abc import Callable

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
)

from wattloop.core.errors import StoreError, StoreTooNew

__all__ = [
    "MIGRATIONS",
    "VERSION",
    "events",
    "experiments",
    "metadata",
    "prepare",
    "run_facts",
    "run_tags",
    "runs",
    "sample_chunks",
    "sample_levels",
    "steps",
    "trials",
    "windows",
]

VERSION = 1
"""Version of the tables below. A store with a higher one is refused."""

metadata = MetaData()

meta = Table("meta", metadata, Column("key", String, primary_key=True), Column("value", Text))


def _run_id() -> Column[str]:
    """A column that belongs to a run and goes away with it."""
    return Column("run_id", String, ForeignKey("runs.run_id", ondelete="CASCADE"), primary_key=True)


runs = Table(
    "runs",
    metadata,
    Column("run_id", String, primary_key=True),
    Column("name", String, nullable=False),
    Column("status", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("host", String, nullable=False),
    Column("machine_id", String, nullable=False),
    Column("user_name", String, nullable=False),
    Column("job_id", String),
    Column("parent_run_id", String),
    Column("started_wall_s", Double, nullable=False),
    Column("duration_s", Double),
    Column("energy_j", Double),
    Column("uncertainty_j", Double),
    Column("exit_code", Integer),
    Column("counted", Boolean, nullable=False),
    Column("body", Text, nullable=False),
    Index("runs_by_start", "started_wall_s"),
    Index("runs_by_name", "name"),
    Index("runs_by_job", "job_id"),
)

run_tags = Table(
    "run_tags",
    metadata,
    _run_id(),
    Column("key", String, primary_key=True),
    Column("value", Text, nullable=False),
)

run_facts = Table(
    "run_facts",
    metadata,
    _run_id(),
    Column("cluster", String, nullable=False),
    Column("partition", String, nullable=False),
    Column("project", String, nullable=False),
    Column("exclusive", Boolean),
    Column("device", String, nullable=False),
    Column("label", String, nullable=False),
    Column("insights", Text, nullable=False),
    Column("provenance", String, nullable=False),
    Column("complete", Boolean, nullable=False),
    Column("facility_j", Double),
    Column("carbon_g", Double),
    Index("run_facts_by_cluster", "cluster"),
    Index("run_facts_by_project", "project"),
)
"""What lists and totals need of a run without reading its body."""

windows = Table(
    "windows",
    metadata,
    _run_id(),
    Column("position", Integer, primary_key=True),
    Column("window_id", Integer, nullable=False),
    Column("parent_id", Integer),
    Column("name", String, nullable=False),
    Column("begin_s", Double, nullable=False),
    Column("end_s", Double, nullable=False),
    Column("energy_j", Double),
    Column("body", Text, nullable=False),
)

steps = Table(
    "steps",
    metadata,
    _run_id(),
    Column("position", Integer, primary_key=True),
    Column("kind", String, nullable=False),
    Column("step_index", Integer, nullable=False),
    Column("begin_s", Double, nullable=False),
    Column("end_s", Double, nullable=False),
    Column("body", Text, nullable=False),
)

events = Table(
    "events",
    metadata,
    _run_id(),
    Column("position", Integer, primary_key=True),
    Column("type", String, nullable=False),
    Column("time_s", Double),
    Column("body", Text, nullable=False),
)

sample_chunks = Table(
    "sample_chunks",
    metadata,
    _run_id(),
    Column("feed", Integer, primary_key=True),
    Column("part", Integer, primary_key=True),
    Column("series", Integer, primary_key=True),  # -1: the times that all series of a feed share
    Column("begin_s", Double, nullable=False),
    Column("end_s", Double, nullable=False),
    Column("count", Integer, nullable=False),
    Column("payload", LargeBinary, nullable=False),
)

sample_levels = Table(
    "sample_levels",
    metadata,
    _run_id(),
    Column("feed", Integer, primary_key=True),
    Column("series", Integer, primary_key=True),
    Column("level_s", Integer, primary_key=True),
    Column("part", Integer, primary_key=True),
    Column("begin_s", Double, nullable=False),
    Column("end_s", Double, nullable=False),
    Column("count", Integer, nullable=False),
    Column("payload", LargeBinary, nullable=False),
)

experiments = Table(
    "experiments",
    metadata,
    Column("experiment_id", String, primary_key=True),
    Column("kind", String, nullable=False),
    Column("name", String, nullable=False),
    Column("status", String, nullable=False),
    Column("created_wall_s", Double, nullable=False),
    Column("fingerprint", String, nullable=False),
    Column("body", Text, nullable=False),
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
    Column("number", Integer, nullable=False),
    Column("status", String, nullable=False),
    Column("run_id", String),  # no foreign key: a run comes into the store after its trial ended
    Column("body", Text, nullable=False),
)

MIGRATIONS: dict[int, Callable[[Connection], None]] = {}
"""From version N (the key) to N + 1, in the same transaction as everything else."""


def is_current(connection: Connection, where: str) -> bool:
    """Whether nothing needs to be done; raises `StoreTooNew`, or `StoreError` for other files."""
    present = set(inspect(connection).get_table_names())
    if present and meta.name not in present and runs.name in present:
        raise StoreError(
            f"{where}: has a table 'runs' that is not Wattloop's; choose another place with "
            "--store or WATTLOOP_STORE"
        )
    return set(metadata.tables) <= present and _version(connection, where) == VERSION


def is_readable(connection: Connection, where: str) -> bool:
    """Whether runs can be read as it is: tables that came later may be missing."""
    present = set(inspect(connection).get_table_names())
    return {meta.name, runs.name} <= present and _version(connection, where) == VERSION


def prepare(connection: Connection, where: str) -> None:
    """Create what is missing and migrate what is old; call it inside a write transaction."""
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
