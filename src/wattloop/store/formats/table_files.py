"""Files of tables: CSV, JSON and Parquet, written atomically or to standard output."""

import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from wattloop.core.errors import ConfigError
from wattloop.core.files import atomic_path, user_path
from wattloop.core.table import write_csv
from wattloop.core.text import plain
from wattloop.store.run_record import RunRecord

Value = str | float | int | bool | None


ROWS_AT_ONCE = 131_072


@dataclass(frozen=True, slots=True)
class ExportTable:
    """Columns with their types, and rows that are generated while they are read."""

    columns: dict[str, type]
    rows: Iterator[tuple[Value, ...]]


class Target:
    """A file to be written; `-` is standard output.

    Args:
        name: the file.
        option: what named it, such as `--json`, for messages.
    """

    def __init__(self, name: str, option: str = "") -> None:
        self.name = name
        self.label = f"{option} {name}".strip()
        self.is_stdout = name == "-"

    def write_text(self, text: str) -> None:
        with self.text() as file:
            file.write(text)

    @contextmanager
    def text(self) -> Iterator[TextIO]:
        """Open a text file in UTF-8."""
        if self.is_stdout:
            yield sys.stdout
            sys.stdout.flush()
            return
        with self.path() as path, path.open("w", encoding="utf-8", newline="") as file:
            yield file

    @contextmanager
    def path(self) -> Iterator[Path]:
        """Return a temporary path next to the target; it replaces the target on success."""
        goal = user_path(self.name)
        if goal.is_dir():
            raise ConfigError(f"{self.label}: is a directory; name a file in it")
        direct = goal.exists() and not goal.is_file()  # /dev/null, a pipe: nothing to replace
        goal = goal if direct else goal.resolve()  # a link keeps pointing to its file
        try:
            if direct:
                yield goal
            else:
                with atomic_path(goal, durable=True) as temporary:
                    yield temporary
        except OSError as error:
            raise ConfigError(
                f"{self.label}: cannot be written: {error.strerror or error}; choose another file"
            ) from error


def write_csv_file(table: ExportTable, target: Target) -> None:
    """Write comma-separated values; a missing value is an empty cell."""
    with target.text() as file:
        write_csv(file, list(table.columns), (map(_as_in_json, row) for row in table.rows))


def write_json_file(table: ExportTable, target: Target) -> None:
    """Write a list with one object per row, one row per line."""
    names = list(table.columns)
    with target.text() as file:
        file.write("[")
        separator = "\n"
        for row in table.rows:
            line = {name: _finite(value) for name, value in zip(names, row, strict=True)}
            file.write(separator + json.dumps(line, default=str))
            separator = ",\n"
        file.write("\n]\n")


def json_of_runs(records: Sequence[RunRecord]) -> str:
    """Return all data of the runs except their samples; NaN and infinities are null."""
    data = [_finite(record.to_dict()) for record in records]
    return json.dumps(data, indent=2, default=str) + "\n"


def write_parquet_file(table: ExportTable, target: Target) -> None:
    """Write Apache Parquet, a group of rows at a time. Needs the extra `parquet`."""
    if target.is_stdout:
        raise ConfigError("--format parquet is not text; name a file with -o FILE")
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ConfigError(
            "--format parquet needs pyarrow; install it with: pip install 'wattloop[parquet]', "
            "or use --format csv"
        ) from None
    types = {str: pa.string(), float: pa.float64(), int: pa.int64(), bool: pa.bool_()}
    schema = pa.schema([(name, types[kind]) for name, kind in table.columns.items()])
    with target.path() as path, pq.ParquetWriter(path, schema, compression="zstd") as writer:
        while rows := list(islice(table.rows, ROWS_AT_ONCE)):
            columns = [
                pa.array([_plain_cell(row[i]) for row in rows], type=field.type)
                for i, field in enumerate(schema)
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))


def _as_in_json(value: Any) -> Any:
    return ("true" if value else "false") if isinstance(value, bool) else value


def _plain_cell(value: Any) -> Any:
    return plain(value) if isinstance(value, str) else value


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
