"""Comma-separated values. A missing value is an empty cell."""

import csv
from typing import Any

from wattloop.store.formats.target import Target
from wattloop.store.tables import Table
from wattloop.store.text import plain

__all__ = ["write"]


def write(table: Table, target: Target) -> None:
    """Write all rows."""
    with target.text() as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(table.columns)
        writer.writerows(tuple(map(_cell, row)) for row in table.rows)


def _cell(value: Any) -> Any:
    """Booleans as in JSON; spreadsheets must not take text for a formula."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = plain(value)
        return f"'{text}" if text[:1] in ("=", "+", "@", "\t", "\r") else text
    return value
