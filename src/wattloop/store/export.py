"""Export any table of any runs in any format, and copy runs between stores."""

from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any

from sqlalchemy import Connection, insert, select

from wattloop.core.errors import ConfigError
from wattloop.store.database import Store
from wattloop.store.formats import csv_file, json_file, parquet_file, prometheus
from wattloop.store.formats.target import Target
from wattloop.store.jobs import refresh_job_in
from wattloop.store.runs import RunRecord, has_run
from wattloop.store.schema import metadata, runs
from wattloop.store.tables import TABLES, table_of

FORMATS = ("csv", "json", "parquet", "prometheus")
_ENDINGS = {".json": "json", ".parquet": "parquet", ".prom": "prometheus"}


def export(
    store: Store,
    records: Sequence[RunRecord],
    *,
    what: str = "runs",
    file_format: str = "csv",
    target: str = "-",
) -> None:
    """Write the table `what` of `records` to the file `target`; `-` is standard output.

    Raises:
        ConfigError: unknown table or format, a combination that makes no sense, an optional
            library that is not installed, or a target that cannot be written.
    """
    _known(what, TABLES, "--what")
    _known(file_format, FORMATS, "--format")
    place = Target(target)
    if file_format == "prometheus":
        if what != "runs":
            raise ConfigError(f"--format prometheus holds totals of runs, not {what}; use csv")
        place.write_text(prometheus.text_of(records))
    elif file_format == "json" and what == "runs":
        place.write_text(json_file.text_of_runs(records))
    else:
        _WRITERS[file_format](table_of(what, store, records), place)


def format_for(target: str, asked: str | None) -> str:
    """Return the requested format, else the one of the file's suffix, else CSV."""
    return asked or _ENDINGS.get(PurePath(target).suffix.lower(), "csv")


_WRITERS: dict[str, Callable[[Any, Target], None]] = {
    "csv": csv_file.write,
    "json": json_file.write,
    "parquet": parquet_file.write,
}


def _known(word: str, allowed: Sequence[str] | dict[str, Any], option: str) -> None:
    if word not in allowed:
        raise ConfigError(f"{option} {word}: unknown; choose one of {', '.join(allowed)}")


def copy_runs(source: Store, target: Store) -> tuple[list[str], list[str]]:
    """Copy runs that the target lacks; return (copied, already there).

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
    """Copy all rows of a run, in every table that belongs to runs."""
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
