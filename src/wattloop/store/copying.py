"""Copies runs from one store to another, such as from a file to a server."""

from sqlalchemy import Connection, insert, select

from wattloop.core.errors import ConfigError
from wattloop.store.database import Store
from wattloop.store.job_rows import refresh_job_in
from wattloop.store.runs import has_run
from wattloop.store.schema import metadata, runs

__all__ = ["copy_runs"]


def copy_runs(source: Store, target: Store) -> tuple[list[str], list[str]]:
    """Copy what the target does not have; (copied, already there).

    Each run is one transaction: interrupted, the copy is continued by starting it again.
    """
    if source.place.label == target.place.label:
        raise ConfigError(f"{source.where}: source and target are the same store")
    with source.reading() as connection:
        query = select(runs.c.run_id).order_by(runs.c.started_wall_s)
        run_ids = [run_id for (run_id,) in connection.execute(query)]
    copied, known = [], []
    for run_id in run_ids:
        with source.reading() as old, target.writing() as new:
            if has_run(new, run_id):
                known.append(run_id)
                continue
            _copy(old, new, run_id)
        copied.append(run_id)
    return copied, known


def _copy(old: Connection, new: Connection, run_id: str) -> None:
    """All rows of a run, in every table that belongs to runs, present and future ones."""
    for table in metadata.sorted_tables:
        if "run_id" not in table.c:
            continue
        found = old.execute(select(table).where(table.c.run_id == run_id)).mappings()
        rows = [dict(row) for row in found]
        if rows:
            new.execute(insert(table), rows)
    job_key = new.execute(select(runs.c.job_key).where(runs.c.run_id == run_id)).scalar()
    if job_key is not None:
        refresh_job_in(new, job_key)
