"""Ways out: any table of any runs, in any format, to a file that is whole or not there."""

from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.store.database import Store
from wattloop.store.formats import csv_file, json_file, parquet_file, prometheus
from wattloop.store.formats.target import Target
from wattloop.store.runs import RunRecord
from wattloop.store.tables import TABLES, table_of

__all__ = ["FORMATS", "export", "format_for"]

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
    """The format that was asked for, else the one that the file's name says, else CSV."""
    return asked or _ENDINGS.get(PurePath(target).suffix.lower(), "csv")


_WRITERS: dict[str, Callable[[Any, Target], None]] = {
    "csv": csv_file.write,
    "json": json_file.write,
    "parquet": parquet_file.write,
}


def _known(word: str, allowed: Sequence[str] | dict[str, Any], option: str) -> None:
    if word not in allowed:
        raise ConfigError(f"{option} {word}: unknown; choose one of {', '.join(allowed)}")
