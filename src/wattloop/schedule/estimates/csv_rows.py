"""Rows of a CSV file by column name, with faults that say line and column."""

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from wattloop.core.errors import ConfigError
from wattloop.core.user_code import user_path


@dataclass(frozen=True, slots=True)
class CsvRow:
    """One line."""

    path: str
    line: int
    values: dict[str, str]

    def text(self, column: str) -> str:
        """What is written there, without blanks; empty where the file has no such column."""
        return self.values.get(column, "").strip()

    def number(self, column: str, *, least: float = 0.0) -> float:
        """A finite number of at least `least`.

        Raises:
            ConfigError: it is none; names file, line and column.
        """
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value < math.inf:
            raise ConfigError(
                f"{self.path}:{self.line}: {column} is {text or 'empty'!r}; write a number of at "
                f"least {least:g}"
            )
        return value

    def whole(self, column: str) -> int:
        """A whole number of at least 1."""
        value = self.number(column, least=1.0)
        if value != int(value):
            raise ConfigError(
                f"{self.path}:{self.line}: {column} is {self.text(column)!r}; write a whole number"
            )
        return int(value)

    def flag(self, column: str) -> bool:
        """Whether `1`, `true` or `yes` stands there; an empty field is no."""
        text = self.text(column).lower()
        if text not in ("", "0", "1", "true", "false", "yes", "no"):
            raise ConfigError(f"{self.path}:{self.line}: {column} is {text!r}; write 0 or 1")
        return text in ("1", "true", "yes")


@dataclass(frozen=True, slots=True)
class CsvFile:
    """A file's columns and rows; lines that begin with # are remarks."""

    path: str
    columns: tuple[str, ...]
    rows: tuple[CsvRow, ...]

    def __iter__(self) -> Iterator[CsvRow]:
        return iter(self.rows)

    def has(self, columns: Sequence[str]) -> bool:
        """Whether all of these are there."""
        return set(columns) <= set(self.columns)


def read_rows(name: str | Path) -> CsvFile:
    """A comma-separated file whose first line names the columns.

    Raises:
        ConfigError: not there, not text, empty, or a line with more fields than columns.
    """
    path = user_path(str(name))
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError(f"{name}: cannot be read: {reason}") from None
    lines = [
        (number, line)
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip() and not line.startswith("#")
    ]
    fields = list(csv.reader(line for _, line in lines))
    if not fields:
        raise ConfigError(f"{name}: is empty; its first line names the columns")
    columns = tuple(each.strip() for each in fields[0])
    rows = []
    for (number, _), values in zip(lines[1:], fields[1:], strict=True):
        if len(values) != len(columns):
            raise ConfigError(
                f"{name}:{number}: {len(values)} fields, but the first line names {len(columns)}"
            )
        rows.append(CsvRow(str(name), number, dict(zip(columns, values, strict=True))))
    return CsvFile(str(name), columns, tuple(rows))
