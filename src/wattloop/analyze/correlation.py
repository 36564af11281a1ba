"""Correlations of columns: Pearson's r and Spearman's rho with p values.

    p = 2 P(T > |r| sqrt((n - 2) / (1 - r^2))),  T of Student with n - 2 degrees of freedom

for both, over the rows that have both values.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from wattloop.analyze.analysis_result import Findings, headers, needs_libraries
from wattloop.analyze.table import Floats, RunTable
from wattloop.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Correlations(Findings):
    """Pairs, the strongest first; `names` are the columns that were compared."""

    names: tuple[str, ...]
    target: str | None


def correlations(
    table: RunTable, target: str | None = None, *, columns: Sequence[str] | None = None
) -> Correlations:
    """Correlate every pair of columns, or each with the target.

    Parameters with two levels that are not numbers count as 0 and 1; other text is left out.

    Raises:
        ConfigError: a column is unknown or not a number, or fewer than two vary.
    """
    needs_libraries("correlation", "scipy")
    table.needs_rows(3, "a correlation")
    usable, notes, left_out = _usable(table, columns)
    if target is not None and target not in usable:
        if target in left_out:
            raise ConfigError(f"{table.name}: '{target}' cannot be correlated: {left_out[target]}")
        usable[target] = table.numbers(target)
    if len(usable) < 2:
        raise ConfigError(f"{table.name}: fewer than two columns have numbers that vary")
    if target is None:
        pairs = list(combinations(usable, 2))
    else:
        pairs = [(target, name) for name in usable if name != target]
    rows = [_pair(one, other, usable) for one, other in pairs]
    rows.sort(key=lambda row: -abs(row["r"] or 0.0))
    why: dict[str, list[str]] = {}
    for name, reason in left_out.items():
        why.setdefault(reason, []).append(name)
    notes += [f"left out, {reason}: {', '.join(names)}" for reason, names in why.items()]
    if len(rows) > 1:
        notes.append(
            f"p is of each pair by itself; of {len(rows)} pairs, 5% are below 0.05 by chance"
        )
    about = f" with {target}" if target else ""
    return Correlations(
        title=f"{table.name}: correlation{about}",
        columns=headers(one="column", other="with", r="Pearson r", r_p="p")
        | headers(rho="Spearman rho", rho_p="p of rho", rows="rows"),
        rows=tuple(rows),
        formats={"r": "+.3f", "rho": "+.3f", "r_p": ".3g", "rho_p": ".3g"},
        notes=tuple(notes),
        names=tuple(usable),
        target=target,
    )


def pearson(x: Floats, y: Floats) -> float | None:
    """Return Pearson's r; None when one of them does not vary."""
    dx, dy = x - x.mean(), y - y.mean()
    scale = math.sqrt(float(dx @ dx) * float(dy @ dy))
    return float(np.clip(dx @ dy / scale, -1.0, 1.0)) if scale > 0 else None


def ranks(values: Floats) -> Floats:
    """Return the rank of each value, from 1; equal values share the mean of their ranks."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    shared: Floats = (last - (counts - 1) / 2)[place]
    return shared


def _pair(one: str, other: str, usable: dict[str, Floats]) -> dict[str, Any]:
    x, y = usable[one], usable[other]
    both = np.isfinite(x) & np.isfinite(y)
    n = int(both.sum())
    row: dict[str, Any] = {"one": one, "other": other, "rows": n}
    if n < 3:
        return row | dict.fromkeys(("r", "r_p", "rho", "rho_p"))
    r = pearson(x[both], y[both])
    rho = pearson(ranks(x[both]), ranks(y[both]))
    return row | {"r": r, "r_p": _chance(r, n), "rho": rho, "rho_p": _chance(rho, n)}


def _chance(r: float | None, n: int) -> float | None:
    from scipy import special

    if r is None:
        return None
    if abs(r) >= 1:
        return 0.0
    return float(2 * special.stdtr(n - 2, -abs(r) * math.sqrt((n - 2) / (1 - r * r))))


def _usable(
    table: RunTable, columns: Sequence[str] | None
) -> tuple[dict[str, Floats], list[str], dict[str, str]]:
    """Return numbers by column, notes on converted text, and the reasons for columns left out."""
    usable: dict[str, Floats] = {}
    notes, left_out = [], {}
    for name in columns or (*table.parameters, *table.results):
        if not table.varies(name):
            known = any(value is not None for value in table.column(name))
            left_out[name] = "the same in every row" if known else "no values"
        elif table.is_numeric(name):
            usable[name] = table.numbers(name)
        elif len(levels := table.levels(name)) == 2:
            place = {levels[0]: 0.0, levels[1]: 1.0, None: math.nan}
            usable[name] = np.array([place[label] for label in table.labels(name)])
            notes.append(f"{name}: {levels[0]} is 0, {levels[1]} is 1")
        else:
            left_out[name] = "text"
    return usable, notes, left_out
