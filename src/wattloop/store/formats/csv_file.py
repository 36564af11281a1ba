"""Comma-separated values. A missing value is an empty cell."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

from wattloop.core.text import plain
from wattloop.store.formats.target import Target
from wattloop.store.tables import Table

FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""First characters that a spreadsheet takes for a formula."""


def write(table: Table, target: Target) -> None:
    with target.text() as file:
        _write(file, list(table.columns), (map(_as_in_json, row) for row in table.rows))


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any] | Sequence[Any]]) -> str:
    """Format rows as CSV: mappings by their columns, or sequences; missing values are empty
    cells.
    """
    text = io.StringIO()
    lists = (
        [row.get(name) for name in columns] if isinstance(row, Mapping) else row for row in rows
    )
    _write(text, columns, lists)
    return text.getvalue()


def _write(file: TextIO, columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([_cell(name) for name in columns])
    writer.writerows(tuple(map(_cell, row)) for row in rows)


def _as_in_json(value: Any) -> Any:
    return ("true" if value else "false") if isinstance(value, bool) else value


def _cell(value: Any) -> Any:
    """Escape text that a spreadsheet would take for a formula."""
    if value is None or isinstance(value, int | float):
        return value
    text = plain(value)
    return f"'{text}" if text.startswith(FORMULAS) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
