"""Shared parts of scatter figures: rows, tooltips, scales."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from wattloop.analyze.table import RunTable, column_unit
from wattloop.report.figures.chart import Spec, channel

MOST_POINTS = 2_000
"""More points than this only cover each other."""
UNIT_NAMES = {"j": "J", "kj": "kJ", "wh": "Wh", "kwh": "kWh", "w": "W", "kw": "kW", "pct": "%"}


def drawn_rows(
    table: RunTable, always: Sequence[bool] | None = None, most: int = MOST_POINTS
) -> tuple[list[int], str]:
    """Return the rows to draw and a note: all, or those in `always` and a sample (fixed seed)."""
    if len(table) <= most:
        return list(range(len(table))), ""
    kept = np.zeros(len(table), dtype=bool) if always is None else np.array(always)
    rng = np.random.default_rng(0)
    kept[rng.choice(len(table), most, replace=False)] = True
    return [int(n) for n in np.flatnonzero(kept)], f"{int(kept.sum())} of {len(table)} runs drawn"


def with_tooltips(table: RunTable, number: int, columns: Sequence[str]) -> dict[str, Any]:
    """Return the values of a row under names that no chart can misread (`a.b`, `x[0]`)."""
    values = {f"t{place}": table.column(name)[number] for place, name in enumerate(columns)}
    return {"run": table.names[number], **values}


def tooltips(columns: Sequence[str]) -> list[Any]:
    """Return the tooltips of rows made by `with_tooltips`."""
    return ["run:N", *(channel(f"t{n}:N", name) for n, name in enumerate(columns))]


def titled(column: str) -> str:
    """Format `energy_wh` as `energy (Wh)`."""
    stem, _, unit = column.rpartition("_")
    if stem and column_unit(column) is not None:
        return f"{stem.replace('_', ' ')} ({UNIT_NAMES.get(unit.lower(), unit)})"
    return column.replace("_", " ")


def spread_over(values: Sequence[float]) -> str:
    """Return a logarithmic scale for positive numbers over two decades, else a linear one."""
    low, high = min(values), max(values)
    return "log" if low > 0 and high / low > 100 else "linear"


def fitted(values: Sequence[float]) -> Spec:
    """Return a scale around the values, with space for a label at its edge."""
    return {"type": spread_over(values), "zero": False, "nice": False, "padding": 26}
