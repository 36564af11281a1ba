"""Which format a file has, by the names of its columns."""

import csv
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from wattloop.core.errors import ConfigError
from wattloop.schedule.jobs.traces.cells import FAULTS, parser_of
from wattloop.schedule.jobs.traces.format import TraceFormat, with_columns
from wattloop.schedule.jobs.traces.format_files import format_named, known_formats

__all__ = ["Layout", "detected", "rows_of"]

SEPARATORS = (",", "\t", "|", ";")
MOST_NAMES = 20


class Layout(NamedTuple):
    """How the rows of one file are to be read.

    Attributes:
        form: the format.
        separator: between values.
        header: names of the columns.
        named: whether the first line holds them.
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
    """The layout of a file that begins with this line.

    Args:
        place: the file, for messages.
        first_line: of it.
        form_name: of the format; empty to find out.
        columns: field -> column (or `column:unit`), where they are named otherwise.

    Raises:
        ConfigError: columns are missing; says which it has and which were expected.
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
    """A `csv.reader` (its type has no name); who writes tabs or pipes quotes nothing."""
    if separator in ",;":
        return csv.reader(lines, delimiter=separator)
    return csv.reader(lines, delimiter=separator, quoting=csv.QUOTE_NONE)


def _layouts(form: TraceFormat, first_line: str) -> Iterable[Layout]:
    """Ways to read the line that give all columns which are needed."""
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
