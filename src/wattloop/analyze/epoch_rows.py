"""Logs with a row per epoch, as training callbacks write them, folded into a row per run.

Energy of a mean epoch is (1/N) sum PD_i T_i, as equation 1 of GreenScreen has it; qualities and
other results are those of the last epoch.
"""

import math
from dataclasses import replace

import numpy as np

from wattloop.analyze.columns import is_identifier
from wattloop.analyze.roles import energy_of, power_of, time_of
from wattloop.analyze.table import Table, Value, label_of
from wattloop.core.errors import ConfigError

__all__ = ["fold_epochs"]

EPOCH = "epoch"
RUNS = ("run", "run_id", "trial", "candidate", "name", "id")


def fold_epochs(table: Table) -> Table:
    """A row per run; a table that has no column `epoch`, or no run twice, stays as it is."""
    run = next((name for name in RUNS if name in table.columns), None)
    if run is None or EPOCH not in table.columns or not table.is_numeric(EPOCH):
        return table
    members: dict[str, list[int]] = {}
    for number, label in enumerate(table.labels(run)):
        members.setdefault(label or "no name", []).append(number)
    if len(members) == len(table):
        return table
    order = np.nan_to_num(table.numbers(EPOCH), nan=-math.inf)
    groups = [sorted(own, key=lambda n: order[n]) for own in members.values()]
    columns: dict[str, tuple[Value, ...]] = {
        name: tuple(values[own[-1]] for own in groups) for name, values in table.columns.items()
    }
    columns["epochs"] = tuple(len(own) for own in groups)
    del columns[EPOCH]
    notes = [f"{len(table)} rows of epochs as {len(groups)} runs, by {run}; results of the last"]
    made = ["epochs"]
    for name, values, how in _sums(table):
        columns[f"{name}_per_epoch_{how[0]}"] = tuple(_mean(values[own]) for own in groups)
        columns[f"{name}_{how[0]}"] = tuple(_sum(values[own]) for own in groups)
        made += [f"{name}_{how[0]}", f"{name}_per_epoch_{how[0]}"]
        notes.append(f"{name} of a run: sum of {how[1]}")
    power = power_of(table)
    if power is not None and {"energy_j", "time_s"} <= set(made):
        del columns[power.column]  # of the last epoch, which says nothing about the run
        pairs = zip(columns["energy_j"], columns["time_s"], strict=True)
        columns["power_w"] = tuple(_ratio(energy_j, time_s) for energy_j, time_s in pairs)
        made.append("power_w")
    results = [name for name in table.results if name in columns and name not in made]
    return replace(
        table,
        columns=columns,
        parameters=tuple(n for n in table.parameters if n != EPOCH and not is_identifier(n)),
        results=(*results, *made),
        names=tuple(label_of(name) for name in members),
        notes=(*table.notes, *notes),
    )


def _sums(table: Table) -> list[tuple[str, np.ndarray, tuple[str, str]]]:
    """Energy and time of each epoch, as far as the table has them."""
    found = []
    power = power_of(table)
    try:
        lasted = time_of(table)
    except ConfigError:
        lasted = None
    try:
        spent = energy_of(table)
        found.append(("energy", spent.values, ("j", spent.column)))
    except ConfigError:
        if power is not None and lasted is not None:
            product = power.values * lasted.values
            found.append(("energy", product, ("j", f"{power.column} x {lasted.column}")))
    if lasted is not None:
        found.append(("time", lasted.values, ("s", lasted.column)))
    return found


def _sum(values: np.ndarray) -> float | None:
    """None when a part is missing: a sum without it would be too small."""
    total = float(values.sum())
    return total if math.isfinite(total) else None


def _ratio(energy_j: Value, time_s: Value) -> float | None:
    if not isinstance(energy_j, float) or not isinstance(time_s, float) or not time_s > 0:
        return None
    return energy_j / time_s


def _mean(values: np.ndarray) -> float | None:
    total = _sum(values)
    return None if total is None else total / len(values)
