"""JSON that other programs can read: NaN and infinities become null."""

import json
import math
from collections.abc import Sequence
from typing import Any

from wattloop.store.formats.target import Target
from wattloop.store.runs import RunRecord
from wattloop.store.tables import ExportTable


def text_of_runs(records: Sequence[RunRecord]) -> str:
    """Return all data of the runs except their samples."""
    data = [_finite(record.to_dict()) for record in records]
    return json.dumps(data, indent=2, default=str) + "\n"


def write(table: ExportTable, target: Target) -> None:
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


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
