"""Comma-separated values. A missing value is an empty cell."""

from typing import Any

from wattloop.core.table import write_csv
from wattloop.store.formats.target import Target
from wattloop.store.tables import ExportTable


def write(table: ExportTable, target: Target) -> None:
    with target.text() as file:
        write_csv(file, list(table.columns), (map(_as_in_json, row) for row in table.rows))


def _as_in_json(value: Any) -> Any:
    return ("true" if value else "false") if isinstance(value, bool) else value
