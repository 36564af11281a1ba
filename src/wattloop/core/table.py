"""Tables: one value that renders to terminal, HTML, PDF, CSV and JSON.

`cli.output.print_rows` draws it on a terminal, `report.html` and `report.pdf` in reports.
"""

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TextIO

from wattloop.core.text import plain
from wattloop.core.units import format_number

UNKNOWN = "-"
FORMULAS = ("=", "+", "-", "@", "\t", "\r")
"""First characters that a spreadsheet takes for a formula."""


def format_cell(value: Any) -> str:
    """Format a value for people: four digits, `-` for a missing one."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format_number(value) if isinstance(value, float) else str(value)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a `Table`.

    Attributes:
        header: heading, with the unit unless the texts carry it; the key in CSV and JSON.
        format: value -> text for people.
        is_number: set to the right in reports.
    """

    header: str
    format: Callable[[Any], str] = format_cell
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Columns and rows of values.

    Attributes:
        columns: what each position of a row is.
        rows: values; None is a missing one.
        title: what the table shows.
        notes: sentences below it.
        spare: headers of columns that a narrow terminal may lose, the first of them first.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    title: str = ""
    notes: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        headers: Iterable[str],
        rows: Iterable[Sequence[Any]],
        title: str = "",
        numbers: Iterable[int] = (),
        notes: Iterable[str] = (),
        spare: Iterable[str] = (),
    ) -> Self:
        """Return a table of texts or plain values; `numbers` are positions of number columns."""
        places = frozenset(numbers)
        columns = tuple(Column(text, is_number=n in places) for n, text in enumerate(headers))
        return cls(columns, tuple(map(tuple, rows)), title, tuple(notes), tuple(spare))

    @classmethod
    def from_records(
        cls,
        records: Iterable[Any],
        cells: Mapping[str, Callable[[Any], Any]],
        title: str = "",
        numbers: Iterable[str] = (),
        notes: Iterable[str] = (),
        spare: Iterable[str] = (),
    ) -> Self:
        """Return a row per record; `cells` maps a header to what it shows of a record."""
        rows = [[cell(record) for cell in cells.values()] for record in records]
        places = [n for n, header in enumerate(cells) if header in set(numbers)]
        return cls.of(cells, rows, title, places, notes, spare)

    @property
    def headers(self) -> tuple[str, ...]:
        return tuple(column.header for column in self.columns)

    def texts(self) -> list[tuple[str, ...]]:
        """Return the rows as people see them."""
        formats = [column.format for column in self.columns]
        return [
            tuple(form(value) for form, value in zip(formats, row, strict=True))
            for row in self.rows
        ]

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as plain data for JSON."""
        return [dict(zip(self.headers, row, strict=True)) for row in self.rows]

    def csv(self) -> str:
        return csv_text(self.headers, self.rows)

    def without(self, *headers: str) -> Self:
        """Return the table without some columns."""
        kept = [n for n, header in enumerate(self.headers) if header not in headers]
        return replace(
            self,
            columns=tuple(self.columns[n] for n in kept),
            rows=tuple(tuple(row[n] for n in kept) for row in self.rows),
        )

    def without_empty(self) -> Self:
        """Return the table without columns that are empty in every row."""
        empty = [
            header
            for n, header in enumerate(self.headers)
            if self.rows and not any(row[n] for row in self.rows)
        ]
        return self.without(*empty)


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any] | Sequence[Any]]) -> str:
    """Format rows as CSV: mappings by their columns, or sequences; missing values are empty."""
    text = io.StringIO()
    lists = (
        [row.get(name) for name in columns] if isinstance(row, Mapping) else row for row in rows
    )
    write_csv(text, columns, lists)
    return text.getvalue()


def records_csv(records: Sequence[Mapping[str, Any]], *otherwise: str) -> str:
    """Format mappings as CSV with every key that occurs; `otherwise` are columns without any."""
    columns = list(dict.fromkeys(name for record in records for name in record))
    return csv_text(columns or otherwise, records)


def write_csv(file: TextIO, columns: Sequence[str], rows: Iterable[Iterable[Any]]) -> None:
    """Write CSV in which a spreadsheet finds no formula."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([_csv_cell(name) for name in columns])
    writer.writerows(tuple(map(_csv_cell, row)) for row in rows)


def _csv_cell(value: Any) -> Any:
    if value is None or isinstance(value, int | float):
        return value
    text = plain(value)
    return f"'{text}" if text.startswith(FORMULAS) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
