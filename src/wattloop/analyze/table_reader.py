"""Read tables from CSV files and from rows; columns are declared or inferred."""

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from wattloop.analyze.roles import find_energy, find_power, find_time
from wattloop.analyze.table import (
    RunTable,
    Value,
    format_level,
    is_identifier,
    is_parameter_name,
    is_result_name,
)
from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path

# Logs with a row per epoch, as training callbacks write them, folded into a row per run.
#
# Energy of a mean epoch is (1/N) sum PD_i T_i, as equation 1 of GreenScreen has it; qualities and
# other results are those of the last epoch.

EPOCH = "epoch"
RUNS = ("run", "run_id", "trial", "candidate", "name", "id")


def fold_epochs(table: RunTable) -> RunTable:
    """Fold rows of epochs into a row per run; other tables stay as they are."""
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
        totals = [_sum(values[own]) for own in groups]
        columns[f"{name}_{how[0]}"] = tuple(totals)
        columns[f"{name}_per_epoch_{how[0]}"] = tuple(
            None if total is None else total / len(own)
            for total, own in zip(totals, groups, strict=True)
        )
        made += [f"{name}_{how[0]}", f"{name}_per_epoch_{how[0]}"]
        notes.append(f"{name} of a run: sum of {how[1]}")
    power = find_power(table)
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
        names=tuple(format_level(name) for name in members),
        notes=(*table.notes, *notes),
    )


def _sums(table: RunTable) -> list[tuple[str, np.ndarray, tuple[str, str]]]:
    """Return energy and time of each epoch, as far as the table has them."""
    found = []
    power = find_power(table)
    try:
        lasted = find_time(table)
    except ConfigError:
        lasted = None
    try:
        spent = find_energy(table)
        found.append(("energy", spent.values, ("j", spent.column)))
    except ConfigError:
        if power is not None and lasted is not None:
            product = power.values * lasted.values
            found.append(("energy", product, ("j", f"{power.column} x {lasted.column}")))
    if lasted is not None:
        found.append(("time", lasted.values, ("s", lasted.column)))
    return found


def _sum(values: np.ndarray) -> float | None:
    """Return the sum; None when a part is missing."""
    total = float(values.sum())
    return total if math.isfinite(total) else None


def _ratio(energy_j: Value, time_s: Value) -> float | None:
    if not isinstance(energy_j, float) or not isinstance(time_s, float) or not time_s > 0:
        return None
    return energy_j / time_s


MISSING = frozenset(("", "nan", "na", "n/a", "null"))
"""`None` is not among them: it is a level of GreenScreen's parameters."""
GOOD = frozenset(
    ("ok", "paused", "reached", "ended", "complete", "completed", "finished", "done", "success")
)
STATUS = ("status", "state")
NAMED_BY = ("candidate", "trial", "run", "name", "number", "id", "run_id", "key")
FEW_LEVELS = 20
"""A numeric column with an unknown name and no more different values than this was chosen."""
PLAIN = frozenset((int, float, type(None)))
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?inf(inity)?", re.IGNORECASE)


def read_csv(
    place: str, parameters: Sequence[str] | None = None, results: Sequence[str] | None = None
) -> RunTable:
    """Read a table with names in its first line, separated by commas, semicolons or tabs."""
    try:
        text = user_path(place).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text in UTF-8"
        raise ConfigError(f"{place}: cannot be read: {reason}") from None
    first = text.partition("\n")[0]
    separator = next((s for s in (",", ";", "\t") if s in first), ",")
    try:
        lines = [line for line in csv.reader(io.StringIO(text), delimiter=separator) if line]
    except csv.Error as error:
        raise ConfigError(f"{place}: not a CSV file: {error}") from None
    if not lines:
        raise ConfigError(f"{place}: empty; the first line holds the names of the columns")
    header = [name.strip() for name in lines[0]]
    for name, count in Counter(header).items():
        if count > 1 or not name:
            what = f"column '{name}' is there {count} times" if name else "a column has no name"
            raise ConfigError(f"{place}:1: {what}; give each a name of its own")
    for number, line in enumerate(lines[1:], 2):
        if len(line) != len(header):
            raise ConfigError(
                f"{place}:{number}: {len(line)} values for {len(header)} columns; "
                "is a value with a comma in it without quotes?"
            )
    if len(lines) == 1:
        raise ConfigError(f"{place}: no rows below the names of the columns")
    cells = list(zip(*lines[1:], strict=True))
    for name, values in zip(header, cells, strict=True):
        if is_result_name(name) and name not in (parameters or ()):
            _check_numbers(place, name, values)
    columns = {name: _typed(values) for name, values in zip(header, cells, strict=True)}
    return _table(place, columns, parameters, results)


def table_of(
    rows: Sequence[Mapping[str, Any]],
    *,
    name: str,
    parameters: Sequence[str] | None = None,
    results: Sequence[str] | None = None,
    source: str = "",
    directions: Mapping[str, bool] | None = None,
) -> RunTable:
    """Build a table from mappings; a name that a row lacks is missing there.

    `parameters`: the columns that were chosen before the run; inferred unless given.
    `directions`: columns of which more is better (True) or worse (False).
    """
    if not rows:
        raise ConfigError(f"{name}: no rows to analyse")
    headers = dict.fromkeys(tuple(row) for row in rows)
    if len(headers) == 1:  # as of every search: a column is read at once, not cell by cell
        cells = zip(*(row.values() for row in rows), strict=True)
        found = dict(zip(*headers, cells, strict=True))
    else:
        header = dict.fromkeys(chain.from_iterable(headers))
        found = {column: tuple([row.get(column) for row in rows]) for column in header}
    columns = {column: _plain_column(values) for column, values in found.items()}
    return _table(name, columns, parameters, results, source, directions or {})


def _table(
    name: str,
    columns: Mapping[str, tuple[Value, ...]],
    parameters: Sequence[str] | None,
    results: Sequence[str] | None,
    source: str = "",
    directions: Mapping[str, bool] | None = None,
) -> RunTable:
    length = len(next(iter(columns.values())))
    table = RunTable(
        name=name,
        columns=columns,
        parameters=tuple(parameters or ()),
        results=tuple(results or ()),
        names=_names(columns, length),
        source=source,
        directions=directions or {},
    )
    for column in (*table.parameters, *table.results):
        table.column(column)
    both = [column for column in table.parameters if column in table.results]
    if both:
        raise ConfigError(f"{name}: '{both[0]}' cannot be a parameter and a result")
    return _with_roles(_without_failed(table), parameters, results)


def _without_failed(table: RunTable) -> RunTable:
    for column in STATUS:
        if column in table.columns and not table.is_numeric(column):
            every = left = [label or "no status" for label in table.labels(column)]
            for status in dict.fromkeys(every):
                if status.lower() not in GOOD:
                    table = table.keep([label != status for label in left], status)
                    left = [label for label in left if label != status]
            if not left:
                raise ConfigError(f"{table.name}: every row failed: {', '.join(set(every))}")
            return table
    return table


def _with_roles(
    table: RunTable, parameters: Sequence[str] | None, results: Sequence[str] | None
) -> RunTable:
    chosen, came_out = list(table.parameters), list(table.results)
    for column in table.columns:
        if column in chosen or column in came_out or is_identifier(column):
            continue
        role = _role(table, column)
        if role == "parameter" and parameters is None:
            chosen.append(column)
        elif role == "result" and results is None:
            came_out.append(column)
    notes = list(table.notes)
    if parameters is None:
        notes.append(f"parameters, by their names and values: {', '.join(chosen) or 'none'}")
    if results is None:
        notes.append(f"results, by their names and values: {', '.join(came_out) or 'none'}")
    return replace(table, parameters=tuple(chosen), results=tuple(came_out), notes=tuple(notes))


def _role(table: RunTable, column: str) -> str:
    values = [v for v in table.column(column) if v is not None]
    if not values:
        return "other"
    if not table.is_numeric(column):
        # a text of its own in every row says what a row is, not how it was made
        return "other" if len(set(values)) == len(table) > 2 else "parameter"
    if is_parameter_name(column) and not is_result_name(column):
        return "parameter"
    if is_result_name(column):
        return "result"
    return "parameter" if len(set(values)) <= min(FEW_LEVELS, len(values) // 2) else "result"


def _names(columns: Mapping[str, tuple[Value, ...]], length: int) -> tuple[str, ...]:
    """Return names from a column that distinguishes all rows, else their numbers."""
    for column in NAMED_BY:
        values = columns.get(column)
        if values is not None and None not in values and len(set(values)) == length:
            plain = [format_level(value) for value in values]
            return tuple(f"{column} {p}" if p.isdecimal() else p for p in plain)
    return tuple(f"row {number}" for number in range(1, length + 1))


def _typed(cells: Sequence[str]) -> tuple[Value, ...]:
    stripped = [cell.strip() for cell in cells]
    known = [cell for cell in stripped if cell.lower() not in MISSING]
    if all(NUMBER.fullmatch(cell) for cell in known):
        return tuple(_number(cell) if cell.lower() not in MISSING else None for cell in stripped)
    return tuple(None if cell.lower() in MISSING else cell for cell in stripped)


def _check_numbers(place: str, name: str, cells: Sequence[str]) -> None:
    """Refuse a few words among the numbers of a result, which would make it text."""
    known = {n: c.strip() for n, c in enumerate(cells, 2) if c.strip().lower() not in MISSING}
    wrong = [n for n, cell in known.items() if not NUMBER.fullmatch(cell)]
    commas = [n for n in wrong if NUMBER.fullmatch(known[n].replace(",", ".", 1))]
    if commas:
        raise ConfigError(
            f"{place}:{commas[0]}: {name} is '{known[commas[0]]}'; write decimals with a point, "
            "and thousands without a comma"
        )
    if wrong and len(wrong) < len(known) / 2:
        raise ConfigError(
            f"{place}:{wrong[0]}: {name} is '{known[wrong[0]]}', not a number as in "
            f"{len(known) - len(wrong)} other rows; leave it empty where it is missing"
        )


def _number(cell: str) -> float | int:
    try:
        return int(cell)
    except ValueError:
        return float(cell)


def _plain_column(values: tuple[Any, ...]) -> tuple[Value, ...]:
    """Convert values to plain ones, at once where all are plain already."""
    kinds = set(map(type, values))
    numbers = kinds <= PLAIN and not any(map(math.isnan, filter(None, values)))
    if numbers or kinds <= {str, bool, type(None)}:
        return values
    return tuple(_plain(value) for value in values)


def _plain(value: Any) -> Value:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return None if math.isnan(value) else float(value)
    if isinstance(value, str):
        return str(value)
    item = getattr(value, "item", None)  # numpy's numbers
    return _plain(item()) if callable(item) else str(value)
