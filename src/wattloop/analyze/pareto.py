"""Pareto front of runs, and its knee.

A run is on the front when no other is at least as good in all objectives and better in one; equal
runs are on it together. The knee is the point of the front farthest from the chord between its
ends (two objectives), or nearest to the point that is best in everything (more), each objective
scaled to 0..1 over the front.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattloop.analyze.analysis_result import Findings
from wattloop.analyze.roles import find_energy, find_quality, find_time
from wattloop.analyze.table import Floats, RunTable
from wattloop.core.errors import ConfigError

KNEES = {
    "chord": "farthest from the chord between the ends",
    "utopia": "nearest to the best of everything",
}


@dataclass(frozen=True, kw_only=True)
class Front(Findings):
    """The rows of the front, by the first objective.

    Attributes:
        objectives: column -> whether more is better.
        is_on_front: of every row of `table`, the rows that have all objectives.
        knee: its name; None when the front has none.
    """

    table: RunTable
    objectives: Mapping[str, bool]
    is_on_front: tuple[bool, ...]
    knee: str | None


def pareto_front(
    table: RunTable, objectives: Mapping[str, bool] | None = None, *, knee: str | None = None
) -> Front:
    """Find the front over columns.

    `objectives`: column -> whether more is better; energy and quality, else energy and time, unless
    given.
    `knee`: `chord` or `utopia`; chord for two objectives unless given.
    """
    chosen = dict(objectives or default_objectives(table))
    if len(chosen) < 2:
        raise ConfigError("a front needs two objectives or more; give --minimize and --maximize")
    rule = knee or ("chord" if len(chosen) == 2 else "utopia")
    if rule not in KNEES:
        raise ConfigError(f"unknown knee '{rule}'; known are {', '.join(KNEES)}")
    if rule == "chord" and len(chosen) > 2:
        raise ConfigError("the knee by its chord is for two objectives; use utopia")
    for name in chosen:
        table.numbers(name)
    before = len(table)
    table = table.complete(chosen)
    table.needs_rows(1, "a front")
    costs = np.column_stack(
        [table.numbers(name) * (-1.0 if more else 1.0) for name, more in chosen.items()]
    )
    front = nondominated(costs)
    numbers = sorted(np.flatnonzero(front), key=lambda n: (*costs[n], n))
    best = find_knee(costs[numbers], rule)
    bend = None if best is None else int(numbers[best])
    rows: list[dict[str, Any]] = [
        {
            "run": table.names[n],
            **{name: table.column(name)[n] for name in chosen},
            "knee": "knee" if n == bend else "",
            **{name: table.column(name)[n] for name in table.parameters},
        }
        for n in numbers
    ]
    equal = len(numbers) - len(np.unique(costs[numbers], axis=0))
    said = ", ".join(f"{'more' if more else 'less'} {name}" for name, more in chosen.items())
    notes = [f"better is {said}", f"knee: {KNEES[rule]}, each scaled to 0..1 over the front"]
    if equal:
        notes.append(f"{equal} runs of the front equal another")
    if bend is None:
        notes.append("no knee: it takes a third point that lies inside the chord of the ends")
    if before > len(table):
        gone = before - len(table)
        notes.append(f"{gone} row{'s' * (gone != 1)} with missing values left out")
    return Front(
        title=f"{table.name}: Pareto front, {len(numbers)} of {len(table)} runs",
        columns={
            "run": "run",
            **{name: name for name in chosen},
            "knee": "",
            **{name: name for name in table.parameters},
        },
        rows=tuple(rows),
        facts={"on_front": len(numbers), "rows": len(table), "knee_rule": rule},
        notes=tuple(notes),
        table=table,
        objectives=chosen,
        is_on_front=tuple(bool(value) for value in front),
        knee=None if bend is None else table.names[bend],
    )


def nondominated(costs: Floats) -> NDArray[np.bool_]:
    """Return the rows that no other dominates; less is better in every column."""
    front = np.zeros(len(costs), dtype=bool)
    # what dominates a row comes before it in this order, so the first of those left is on the front
    left = np.lexsort(costs.T[::-1])
    while len(left):
        first, left = left[0], left[1:]
        front[first] = True
        others = costs[left]
        beaten = (others >= costs[first]).all(axis=1) & (others > costs[first]).any(axis=1)
        left = left[~beaten]
    return front


def find_knee(costs: Floats, rule: str) -> int | None:
    """Return the place of the knee among the points of a front.

    None with fewer than three different ones, or where none lies inside the chord.
    """
    if len(np.unique(costs, axis=0)) < 3:
        return None
    low, high = costs.min(axis=0), costs.max(axis=0)
    scaled = (costs - low) / np.where(high > low, high - low, 1.0)
    if rule == "utopia":
        return int(np.argmin(np.linalg.norm(scaled, axis=1)))
    # the ends of a front of two objectives are (0, 1) and (1, 0)
    inside = (1.0 - scaled.sum(axis=1)) / math.sqrt(2)
    best = int(np.argmax(inside))
    return best if inside[best] > 1e-9 else None


def default_objectives(table: RunTable) -> dict[str, bool]:
    """Return less energy and more quality, or less energy and less time without a quality."""
    energy = find_energy(table).column
    try:
        return {energy: False, find_quality(table, held_out=True).column: True}
    except ConfigError:
        return {energy: False, find_time(table).column: False}
