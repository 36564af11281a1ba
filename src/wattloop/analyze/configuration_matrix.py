"""Matrix of levels by run, from worst to best run (GreenScreen, figure 7).

The table has one row per level: where the runs with it stand. A level that makes a run good stands
near 1, one that does not matter near 0.5.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattloop.analyze.analysis_result import Findings, headers
from wattloop.analyze.correlation import ranks
from wattloop.analyze.ols import MANY_LEVELS
from wattloop.analyze.table import Floats, RunTable, nearest
from wattloop.core.errors import ConfigError
from wattloop.core.units import format_number


@dataclass(frozen=True, kw_only=True)
class Matrix(Findings):
    """Levels by where their runs stand.

    Attributes:
        runs: names, from worst to best.
        levels: (parameter, level) of each column.
        switched: a row per run, a column per level.
    """

    metric: str
    runs: tuple[str, ...]
    values: Floats
    levels: tuple[tuple[str, str], ...]
    switched: NDArray[np.bool_]


def configuration_matrix(
    table: RunTable,
    metric: str,
    *,
    more_is_better: bool | None = None,
    parameters: Sequence[str] | None = None,
) -> Matrix:
    """Sort the runs by a column, against all levels."""
    values = table.numbers(metric)
    table = table.complete([metric])
    table.needs_rows(2, "a matrix")
    values = table.numbers(metric)
    if np.ptp(values) == 0:
        raise ConfigError(f"{table.name}: '{metric}' is {values[0]:g} in every row; no order")
    better = table.more_is_better(metric) if more_is_better is None else more_is_better
    order = np.argsort(values if better else -values, kind="stable")
    levels, columns, notes = _columns(table, parameters, metric)
    switched = np.column_stack(columns)[order]
    # 0 is the worst run and 1 the best; equal runs stand together
    standing = (ranks(values if better else -values) - 1) / (len(values) - 1)
    rows: list[dict[str, Any]] = []
    for (parameter, level), on in zip(levels, columns, strict=True):
        own = standing[on]
        rows.append(
            {
                "parameter": parameter,
                "level": level,
                "runs": int(on.sum()),
                "standing": float(own.mean()),
                "z": _beyond_chance(standing, on),
                "worst": float(values[on].min() if better else values[on].max()),
                "mean": float(values[on].mean()),
                "best": float(values[on].max() if better else values[on].min()),
            }
        )
    rows.sort(key=lambda row: -abs(row["z"] or 0.0))
    return Matrix(
        title=f"{table.name}: levels by where their runs stand in {metric}",
        columns=headers("parameter", "level", "runs", standing="standing (0 worst, 1 best)")
        | headers("z", worst=f"worst {metric}", mean="mean", best="best"),
        rows=tuple(rows),
        formats={"standing": ".2f", "z": "+.1f"},
        notes=(
            f"{'more' if better else 'less'} {metric} is better; |z| above 2 is rare by chance",
            *notes,
        ),
        metric=metric,
        runs=tuple(table.names[n] for n in order),
        values=values[order],
        levels=tuple(levels),
        switched=switched,
    )


def _beyond_chance(standing: Floats, on: NDArray[np.bool_]) -> float | None:
    """Mann and Whitney's z: distance from the middle, in spreads of that many random places.

    The spread is that of the places there are, which is smaller where runs are equal.
    """
    runs, own = len(on), int(on.sum())
    if own == runs:
        return None
    spread = math.sqrt(float(standing.var(ddof=1)) * (runs - own) / (own * runs))
    return (float(standing[on].mean()) - 0.5) / spread


def _columns(
    table: RunTable, parameters: Sequence[str] | None, metric: str
) -> tuple[list[tuple[str, str]], list[NDArray[np.bool_]], list[str]]:
    """Return levels and the rows that have them; very many numbers become four equal groups."""
    levels: list[tuple[str, str]] = []
    columns: list[NDArray[np.bool_]] = []
    grouped = []
    for name in table.parameters if parameters is None else parameters:
        if name == metric and parameters is None:
            continue
        if name == metric:
            raise ConfigError(f"'{name}' is what runs are sorted by; leave it out")
        known = table.levels(name)
        if len(known) > MANY_LEVELS and table.is_numeric(name):
            grouped.append(name)
            numbers = table.numbers(name)
            edges = np.nanquantile(numbers, (0, 0.25, 0.5, 0.75, 1))
            for number in range(4):
                low, high = edges[number], edges[number + 1]
                on = (numbers >= low) & ((numbers < high) if number < 3 else (numbers <= high))
                if on.any():
                    levels.append((name, f"{format_number(low, 3)} to {format_number(high, 3)}"))
                    columns.append(on)
            continue
        labels = np.array([label or "" for label in table.labels(name)])
        levels += [(name, level) for level in known]
        columns += [labels == level for level in known]
    if not levels:
        raise ConfigError(
            f"{table.name}: no parameters to show; {nearest('', list(table.columns))}"
        )
    notes = [f"in four groups of equal size: {', '.join(grouped)}"] if grouped else []
    return levels, columns, notes
