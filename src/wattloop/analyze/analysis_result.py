"""The return value of every analysis: a table with its notes."""

import importlib.util
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.core.units import format_number

PACKAGES = {"sklearn": "scikit-learn"}
"""Module -> what pip calls it."""


def has_library(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def needs_libraries(what: str, *modules: str) -> None:
    """Raise ConfigError with the command that installs what is missing."""
    for module in modules:
        if not has_library(module):
            package = PACKAGES.get(module, module)
            raise ConfigError(
                f"{what} needs {package}, which is not installed: pip install 'wattloop[analyze]'"
            )


Row = Mapping[str, Any]


def headers(*keys: str, **named: str) -> dict[str, str]:
    """Return columns: keys that are their own header, then those with another one."""
    return {key: key.replace("_", " ") for key in keys} | named


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Rows with their headers; `others` are further tables of the same analysis.

    Attributes:
        name: what it is called among the tables of one analysis.
        columns: key in a row -> header.
        rows: plain values; a value that is missing is None.
        formats: key -> format of its numbers, where four digits are not what one wants.
        facts: numbers about the whole, such as R2.
        warnings: why not to believe it too easily.
    """

    title: str
    name: str = ""
    columns: Mapping[str, str]
    rows: tuple[Row, ...]
    formats: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    others: tuple["Findings", ...] = ()

    @property
    def headers(self) -> tuple[str, ...]:
        return tuple(self.columns.values())

    def cells(self) -> list[tuple[str, ...]]:
        return [
            tuple(cell(row.get(key), self.formats.get(key, "")) for key in self.columns)
            for row in self.rows
        ]

    @property
    def text(self) -> str:
        lines = [self.title, *_aligned([self.headers, *self.cells()]), *self.lines()]
        lines += [line for other in self.others for line in ("", other.text)]
        return "\n".join(lines)

    def lines(self) -> list[str]:
        facts = [f"{name}: {cell(value)}" for name, value in self.facts.items()]
        return [*facts, *self.notes, *(f"warning: {w}" for w in self.warnings)]

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "columns": dict(self.columns),
            "rows": [dict(row) for row in self.rows],
            "facts": dict(self.facts),
            "notes": list(self.notes),
            "warnings": list(self.warnings),
            "tables": [other.to_dict() for other in self.others],
        }


def cell(value: Any, form: str = "") -> str:
    """Format a value: four digits, `-` where it is missing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, float):
        return str(value)
    return format(value, form) if form else format_number(value)


def _aligned(lines: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
