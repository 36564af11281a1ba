"""Database schema of a store.

A table is added by declaring it here on `metadata`: stores that lack it get it when they are
opened next, without a new version. Changing or removing a column needs a new version and a
migration, see `versions`.

What queries need is a column; everything else is JSON text in `body`, as the run wrote it, so
that a field added later needs no migration.
"""

from sqlalchemy import (
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

metadata = MetaData()
meta = Table("meta", metadata, Column("key", String, primary_key=True), Column("value", Text))


def _run_id() -> Column[str]:
    """Return a column that belongs to a run and is deleted with it."""
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
    Column("job_key", String),
    Column("quarantine", Text),
    Column("clock_offset_s", Double),
    Column("samples_dropped_wall_s", Double),
    Column("levels_dropped_wall_s", Double),
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
    Column("efficiency", Double),
    Column("job_nodes", Integer),
    Index("run_facts_by_cluster", "cluster"),
    Index("run_facts_by_project", "project"),
)
"""Columns of a run that lists and totals need, without reading its body."""
jobs = Table(
    "jobs",
    metadata,
    Column("job_key", String, primary_key=True),
    Column("first_run_id", String, nullable=False),
    Column("job_id", String),
    Column("name", String, nullable=False),
    Column("status", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("host", String, nullable=False),
    Column("user_name", String, nullable=False),
    Column("nodes", Integer, nullable=False),
    Column("nodes_expected", Integer),
    Column("runs", Integer, nullable=False),
    Column("started_wall_s", Double, nullable=False),
    Column("duration_s", Double),
    Column("energy_j", Double),
    Column("uncertainty_j", Double),
    Column("counted", Boolean, nullable=False),
    Column("in_totals", Boolean, nullable=False),
    Column("quarantined", Integer, nullable=False),
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
    Index("jobs_by_start", "started_wall_s"),
)
"""One row per job, computed from its runs whenever one is inserted or deleted, so that a list of a
hundred thousand jobs needs no computation."""
nodes = Table(
    "nodes",
    metadata,
    Column("node", String, primary_key=True),
    Column("heard_wall_s", Double, nullable=False),
    Column("body", Text, nullable=False),
)
"""Last known state of each node, some seconds late."""
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
    Column("run_id", String),  # no foreign key: a run is inserted after its trial has ended
    Column("body", Text, nullable=False),
)
