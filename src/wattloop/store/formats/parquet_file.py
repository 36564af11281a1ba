"""Apache Parquet, for pandas, Polars, DuckDB and Spark. Needs the extra `parquet`."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.core.text import plain
from wattloop.store.formats.target import Target
from wattloop.store.tables import ExportTable

ROWS_AT_ONCE = 131_072


def write(table: ExportTable, target: Target) -> None:
    """Write all rows, a group at a time."""
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
        for rows in _groups(table.rows):
            columns = [
                pa.array([_cell(row[i]) for row in rows], type=field.type)
                for i, field in enumerate(schema)
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))


def _groups(rows: Iterator[Any]) -> Iterator[list[Any]]:
    while group := list(islice(rows, ROWS_AT_ONCE)):
        yield group


def _cell(value: Any) -> Any:
    return plain(value) if isinstance(value, str) else value
