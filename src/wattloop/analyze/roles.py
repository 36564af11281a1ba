"""Roles of columns: energy, time, power and quality, in SI units.

Named by the caller, else found by name and unit; what was taken is said.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from wattloop.analyze.table import UNITS, Floats, RunTable, column_unit, split_words, unit_word
from wattloop.core.errors import ConfigError

ACCURACY = ("accuracy", "acc")
QUALITY = (*ACCURACY, "quality", "f1", "auc", "auroc", "score", "bleu")
ENERGY = ("energy", "joules")
TIME = ("time", "runtime", "duration", "elapsed")
HELD_OUT = ("val", "validation", "test", "eval")
PARTS = ("peak", "cpu", "dram", "gain", "target")
"""Words of columns that accompany the main one."""
UNCLEAR = {
    "J": ("mj", "uj", "nj", "gj", "tj", "mwh", "uwh", "nwh", "gwh", "twh"),
    "W": ("mw", "uw", "nw", "gw", "tw"),
    "s": ("us", "ns", "min", "h", "hr", "hrs", "hour", "day", "days"),
}
"""Units that are none here, or may be two: `energy_mj` is in milli- or in megajoules."""
BOUNDS = frozenset(("warmup", "warm", "max", "min", "patience", "decay"))
"""Words of epochs that are not those that a run had."""


@dataclass(frozen=True, slots=True)
class ColumnQuantity:
    """A column in SI units; NaN where it is missing.

    Attributes:
        values: in joules, seconds, watts, or shares of 1.
        note: what had to be assumed; empty when nothing.
    """

    column: str
    values: Floats
    note: str = ""


def find_energy(table: RunTable, column: str | None = None) -> ColumnQuantity:
    """Return the joules of each row.

    Raises:
        ConfigError: no such column, a unit that is not known, or an energy below 0.
    """
    found = _quantity(table, column, "J", ENERGY, "energy", "energy_j or energy_wh")
    if (found.values < 0).any():
        row = int(np.nanargmin(found.values))
        raise ConfigError(
            f"{table.name}: {found.column} is {table.column(found.column)[row]} in "
            f"{table.names[row]}: no energy is below 0; leave such rows out with "
            f"--where '{found.column}>0'"
        )
    return found


def find_time(table: RunTable, column: str | None = None) -> ColumnQuantity:
    """Return the seconds of a whole run."""
    return _quantity(table, column, "s", TIME, "time", "time_s", without=("epoch", "per"))


def find_power(table: RunTable) -> ColumnQuantity | None:
    """Return the watts; None without such a column."""
    found = find_column(table, lambda c, _: _si_unit(c) == "W", without=PARTS) or find_column(
        table, lambda c, words: bool({"power", "watts"} & words) and column_unit(c) is None
    )
    return None if found is None else _scaled(table, found, "W")


def with_energy(table: RunTable) -> RunTable:
    """Add a column of energy from power and time, where the table has those and no energy."""
    if find_column(table, _has(ENERGY)) or find_column(table, lambda c, _: _si_unit(c) == "J"):
        return table
    try:
        power = find_power(table)
        if power is None:
            return table
        epoch = find_epoch_time(table)
        lasted = epoch or find_time(table)
    except ConfigError:
        return table
    name = "energy_j" if epoch is None else "energy_per_epoch_j"
    values = power.values * lasted.values
    plain = [float(value) if np.isfinite(value) else None for value in values]
    said = [f"{name} = {power.column} x {lasted.column}", power.note, lasted.note]
    notes = (*table.notes, *(note for note in said if note))
    return replace(table.with_column(name, plain), notes=notes)


def find_epoch_time(table: RunTable) -> ColumnQuantity | None:
    """Return the seconds of one epoch; None without such a column."""
    found = find_column(table, lambda c, words: "epoch" in words and bool(set(TIME) & words))
    return None if found is None else _scaled(table, found, "s")


def find_epochs(table: RunTable, column: str | None = None) -> Floats | None:
    """Return the epochs of each row; None without such a column."""
    if column is not None:
        return table.numbers(column)
    named = {c: split_words(c) for c in table.columns if table.is_numeric(c)}
    known = [c for c, w in named.items() if w[-1:] == ["epochs"] and not BOUNDS & set(w)]
    known.sort(key=lambda c: named[c] != ["epochs"])
    return table.numbers(known[0]) if known else None


def find_quality(
    table: RunTable, column: str | None = None, *, held_out: bool = False
) -> ColumnQuantity:
    """Return the quality of a run; per cent become shares.

    `held_out`: whether validation is meant where there are both.
    """
    if column is None:
        words = ACCURACY if find_column(table, _has(ACCURACY)) else QUALITY
        wanted = find_column(
            table, lambda c, w: _has(words)(c, w) and bool(set(HELD_OUT) & w) == held_out
        )
        column = wanted or find_column(table, _has(words))
    if column is None:
        raise ConfigError(
            f"{table.name}: no column of quality, such as accuracy; name one of "
            f"{', '.join(table.results) or 'its columns'}"
        )
    values = table.numbers(column)
    if not table.more_is_better(column):
        raise ConfigError(
            f"{table.name}: of '{column}' less is better; name a quality of which more is"
        )
    # 1.5: rounding may lift a share a little above 1, no percentage of interest is below that
    if set(ACCURACY) & set(split_words(column)) and 1.5 < np.nanmax(values) <= 100.0:
        return ColumnQuantity(column, values / 100, f"{column} is in per cent")
    return ColumnQuantity(column, values)


def default_target(table: RunTable) -> str:
    """Return the default target: energy, else power, else the first result.

    Where rows were trained for different numbers of epochs, energy per epoch, if there is such a
    column: a total would tell how long each was allowed to train.
    """
    epochs = find_epochs(table)
    if epochs is not None and len(np.unique(epochs[np.isfinite(epochs)])) > 1:
        found = find_column(table, lambda _, words: {"energy", "epoch"} <= words)
        if found is not None:
            return found
    for words in (ENERGY, ("power",)):
        found = find_column(table, _has(words), without=("gain",))
        if found is not None:
            return found
    numeric = [c for c in table.results if table.is_numeric(c)]
    if not numeric:
        raise ConfigError(f"{table.name}: no result with numbers; name one with --target")
    return numeric[0]


Test = Callable[[str, set[str]], bool]


def find_column(table: RunTable, test: Test, without: tuple[str, ...] = ()) -> str | None:
    """Return the first numeric result that passes; columns with words of `without` come last."""
    passed = []
    for column in table.results:
        words = set(split_words(column))
        if test(column, words) and table.is_numeric(column):
            passed.append((bool(set(without) & words), column))
    # sorting is stable: the first among equals
    return min(passed, key=lambda item: item[0])[1] if passed else None


def _si_unit(column: str) -> str:
    return (column_unit(column) or ("",))[0]


def _has(words: tuple[str, ...]) -> Test:
    return lambda _column, own: bool(set(words) & own)


def _quantity(
    table: RunTable,
    column: str | None,
    unit: str,
    words: tuple[str, ...],
    what: str,
    example: str,
    without: tuple[str, ...] = (),
) -> ColumnQuantity:
    apart = (*PARTS, *without)
    found = (
        column
        or find_column(table, lambda c, w: _has(words)(c, w) and _si_unit(c) == unit, apart)
        or find_column(table, _has(words), apart)
        or find_column(table, lambda c, w: _si_unit(c) == unit, apart)
    )
    if found is None:
        raise ConfigError(f"{table.name}: no column of {what}, such as {example}")
    return _scaled(table, found, unit)


def _scaled(table: RunTable, column: str, unit: str) -> ColumnQuantity:
    known = column_unit(column)
    if known is None:
        last = unit_word(column)
        if last in UNCLEAR[unit]:
            raise ConfigError(
                f"{table.name}: '{column}': the unit '{last}' is not known here; known are "
                f"{', '.join(u for u, (si, _) in UNITS.items() if si == unit)}"
            )
        return ColumnQuantity(
            column, table.numbers(column), f"{column} has no unit: taken as {unit}"
        )
    if known[0] != unit:
        raise ConfigError(f"{table.name}: '{column}' is in {known[0]}, not in {unit}")
    return ColumnQuantity(column, table.numbers(column) * known[1])
