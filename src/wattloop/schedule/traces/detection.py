"""Detection of a trace's format from its column names, and parsers of values."""

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattloop.core.errors import ConfigError
from wattloop.schedule.traces.format import TraceFormat, format_named, known_formats, with_columns

Parser = Callable[[str], float]


SCALES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0, "h": 3_600.0, "d": 86_400.0}


CLOCK = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")


FAULTS = (ValueError, OverflowError)


"""Exceptions of parsers, including overflow of very long numbers."""


GPUS = re.compile(r"gres/gpu(?::([^=,]+))?=(\d+)")


def numbers(
    cells: Sequence[str], parse: Parser, empty: float | None = None, *, needed: bool = True
) -> tuple[NDArray[np.float64], dict[int, str]]:
    """Parse a column; return its values, and the faults of invalid cells.

    Args:
        cells: texts of the cells.
        parse: parses one cell; raises one of `FAULTS`.
        empty: value of an empty cell; None for no value.
        needed: an empty or NaN cell is a fault; otherwise it is NaN.
    """
    try:
        found = np.fromiter(map(parse, cells), np.float64, len(cells))
    except FAULTS:
        found = np.fromiter((_one(cell, parse, empty) for cell in cells), np.float64, len(cells))
    wrong = {}
    for row in np.flatnonzero(~np.isfinite(found)).tolist():
        cell = cells[row].strip()
        if needed or cell.lower() not in ("", "nan"):
            wrong[row] = "is empty" if not cell else "is not a number"
    return found, wrong


def parser_of(unit: str) -> Parser:
    """Return the parser of a unit."""
    if unit == "date":
        return _date_s
    if unit == "clock":
        return _clock_s
    if unit == "tres":
        return _tres_gpus
    if unit == "percent":
        return _per_cent
    scale = SCALES.get(unit, 1.0)
    return float if scale == 1.0 else lambda cell: float(cell) * scale


def tres_type(cell: str) -> str:
    """Return the GPU type: `a100` of `cpu=8,gres/gpu:a100=2,gres/gpu=2`; empty without one."""
    return next((kind for kind, _ in GPUS.findall(cell) if kind), "")


def _one(cell: str, parse: Parser, empty: float | None) -> float:
    if empty is not None and not cell.strip():
        return empty
    try:
        return parse(cell)
    except FAULTS:
        return np.nan


def _date_s(cell: str) -> float:
    """Parse ISO 8601; without a time zone, UTC is assumed for the whole file."""
    moment = datetime.fromisoformat(cell.strip())
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


@lru_cache(maxsize=1 << 16)
def _clock_s(cell: str) -> float:
    """Parse Slurm's elapsed time: `3-04:05:06`, `04:05:06`, `05:06`."""
    match = CLOCK.fullmatch(cell.strip())
    if match is None:
        raise ValueError(cell)
    days, hours, minutes, seconds = match.groups()
    return (
        int(days or 0) * 86_400.0 + int(hours or 0) * 3_600.0 + int(minutes) * 60 + float(seconds)
    )


@lru_cache(maxsize=1 << 16)
def _tres_gpus(cell: str) -> float:
    """Return the GPUs of a job: Slurm's total, else the sum of the counts by type."""
    found = [(kind, int(count)) for kind, count in GPUS.findall(cell)]
    total = [count for kind, count in found if not kind]
    return float(total[0] if total else sum(count for _, count in found))


def _per_cent(cell: str) -> float:
    return float(cell) / 100


SEPARATORS = (",", "\t", "|", ";")


MOST_NAMES = 20


class Layout(NamedTuple):
    """Layout of the rows of one file.

    Attributes:
        form: the format.
        separator: separator of values.
        header: names of the columns.
        named: the first line contains the names.
        positions: field -> column.
    """

    form: TraceFormat
    separator: str
    header: tuple[str, ...]
    named: bool
    positions: Mapping[str, int]


def detected(
    place: str, first_line: str, form_name: str = "", columns: Mapping[str, str] | None = None
) -> Layout:
    """Detect the layout of a file from its first line.

    Args:
        place: the file, for messages.
        first_line: first line of the file.
        form_name: name of the format; empty to detect it.
        columns: field -> column (or `column:unit`), for other column names.

    Raises:
        ConfigError: columns are missing; the message lists present and expected ones.
    """
    asked = [format_named(form_name)] if form_name else [*known_formats().values()]
    forms = [with_columns(form, columns or {}) for form in asked]
    found = [layout for form in forms for layout in _layouts(form, first_line)]
    if not form_name:
        special = [layout for layout in found if layout.form.name != "plain"]
        found = [layout for layout in special if _is_marked(layout)] or [
            layout for layout in found if layout.form.name == "plain"
        ]
    if not found:
        raise ConfigError(_refusal(place, first_line, forms[-1], form_name))
    best = max(found, key=lambda layout: len(layout.positions))  # the first of equals
    strange = [name for name in columns or {} if name not in best.positions]
    if strange:
        name = strange[0]
        raise ConfigError(
            f"{place}:1: {name}={(columns or {})[name]}: there is no such column; "
            f"the file has {_listed(best.header)}"
        )
    return best


def rows_of(lines: Iterable[str], separator: str) -> Any:
    """Return a `csv.reader` (its type has no name); with tabs or pipes, quotes are literal."""
    if separator in ",;":
        return csv.reader(lines, delimiter=separator)
    return csv.reader(lines, delimiter=separator, quoting=csv.QUOTE_NONE)


def _layouts(form: TraceFormat, first_line: str) -> Iterable[Layout]:
    """Yield the layouts of the line that have all required columns."""
    for separator in dict.fromkeys((form.separator, *SEPARATORS)):
        header = _split(first_line, separator)
        positions = form.positions(header)
        if not form.missing(positions):
            yield Layout(form, separator, header, True, positions)
    header = _split(first_line, form.separator)
    for names in form.layouts:
        positions = form.positions(names)
        if len(names) == len(header) and _is_data(form, header, positions):
            yield Layout(form, form.separator, names, False, positions)


def _is_marked(layout: Layout) -> bool:
    names = {name.strip().lower() for name in layout.header}
    return all(mark.lower() in names for mark in layout.form.marks)


def _is_data(form: TraceFormat, cells: tuple[str, ...], positions: Mapping[str, int]) -> bool:
    for name in ("arrival", "gpus"):
        cell = cells[positions[name]]
        try:
            if cell.strip() or name not in form.empty:
                parser_of(form.unit(name))(cell)
        except FAULTS:
            return False
    return True


def _split(line: str, separator: str) -> tuple[str, ...]:
    try:
        return tuple(next(rows_of([line.rstrip("\r\n")], separator), []))
    except csv.Error:
        return ()


def _refusal(place: str, first_line: str, form: TraceFormat, form_name: str) -> str:
    separator = max(SEPARATORS, key=first_line.count)
    header = _split(first_line, separator)
    missing = form.missing(form.positions(header))
    which = f"format {form_name}: " if form_name else ""
    known = "" if form_name else f", or give its format: {', '.join(known_formats())}"
    first = missing[0].partition(" ")[0]
    return (
        f"{place}:1: {which}no column for {' and '.join(missing)}; the file has "
        f"{_listed(header)}. Say which it is (jobs.trace.columns.{first}=COLUMN){known}"
    )


def _listed(header: tuple[str, ...]) -> str:
    shown = [name.strip()[:30] or "(no name)" for name in header[:MOST_NAMES]]
    return ", ".join(shown) + (", ..." if len(header) > MOST_NAMES else "")
