"""Trace formats: meaning and unit of each column, their detection, and parsers of values."""

import csv
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattloop.core.errors import ConfigError
from wattloop.core.yaml_spec import YamlWithLines, nearest, read_yaml

TIMES = ("s", "ms", "us", "min", "h", "d")
UNITS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("arrival", "start", "end", "deadline"), (*TIMES, "date")),
    "duration": (*TIMES, "clock"),
    "gpus": ("count", "percent", "tres"),
    "gpu_type": ("text", "tres"),
    "batch": ("per_gpu", "global"),
    "steps": ("global", "per_worker"),
}
"""Field -> units it may have, the usual one first. `date` is ISO 8601, `clock` is [D-]HH:MM:SS,
`tres` is Slurm's `cpu=8,gres/gpu=2`; `per_worker` steps are those of all GPUs added up."""
FIELDS = (
    *("arrival", "start", "end", "duration", "gpus", "instances", "user", "name", "state"),
    *("model", "gpu_type", "batch", "steps", "deadline", "priority"),
)
"""Fields that a column can have."""
EITHER = (("duration",), ("start", "end"), ("model", "steps"))
"""Fields of which at least one gives the work of a job."""


@dataclass(frozen=True, slots=True)
class TraceFormat:
    """Column mapping of a trace format.

    Attributes:
        columns: field -> names that a column with this meaning may have, the best first.
        units: field -> unit, where it is not the usual one.
        layouts: names of the columns for files without a header, by number of columns.
        leave_out: field -> patterns (`*` is anything) of rows that are not finished jobs.
        empty: field -> value of an empty cell.
        unusable: treatment of rows with wrong values: `refuse` or `leave_out`.
        marks: names that a file must have for automatic detection of this format.
        model_batch: pattern that splits a value into a model's name and its batch.
    """

    name: str
    columns: Mapping[str, tuple[str, ...]]
    units: Mapping[str, str] = field(default_factory=dict)
    separator: str = ","
    layouts: tuple[tuple[str, ...], ...] = ()
    leave_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    empty: Mapping[str, float] = field(default_factory=dict)
    unusable: str = "refuse"
    marks: tuple[str, ...] = ()
    model_batch: str = ""
    about: str = ""
    source: str = ""

    def unit(self, name: str) -> str:
        return self.units.get(name) or UNITS.get(name, ("",))[0]

    def positions(self, header: Sequence[str]) -> dict[str, int]:
        places = {name.strip().lower(): place for place, name in reversed([*enumerate(header)])}
        found = {}
        for name, choices in self.columns.items():
            known = [places[choice.lower()] for choice in choices if choice.lower() in places]
            if known:
                found[name] = known[0]
        return found

    def missing(self, found: Mapping[str, int]) -> list[str]:
        lacking = [name for name in ("arrival", "gpus") if name not in found]
        if not any(all(name in found for name in way) for way in EITHER):
            lacking.append("duration")
        return [self._said(name) for name in lacking]

    def _said(self, name: str) -> str:
        choices = self.columns.get(name, ())
        return f"{name} (expected as {' or '.join(choices)})" if choices else name


def with_columns(base: TraceFormat, given: Mapping[str, str]) -> TraceFormat:
    """Return the format with other column names: `{"arrival": "t0:ms"}`."""
    columns, units = dict(base.columns), dict(base.units)
    for name, column in given.items():
        if name not in FIELDS:
            raise ConfigError(f"column {name}={column}: unknown field; {nearest(name, FIELDS)}")
        before, _, unit = column.rpartition(":")
        if before and unit in UNITS.get(name, ()):
            column, units[name] = before, unit  # noqa: PLW2901 - the name without its unit
        elif name in units and name in base.columns and column not in base.columns[name]:
            del units[name]  # that unit belonged to another column
        columns[name] = (column,)
    return replace(base, columns=columns, units=units)


FOLDER = Path(__file__).parent / "formats"
KEYS = (
    *("columns", "units", "separator", "layouts", "leave_out", "empty", "unusable"),
    *("marks", "model_batch", "about", "source", "name"),
)
SEPARATOR_NAMES = {"comma": ",", "tab": "\t", "pipe": "|", "semicolon": ";"}


@cache
def known_formats() -> Mapping[str, TraceFormat]:
    """Return the shipped formats by name; `plain` last."""
    names = sorted((path.stem for path in FOLDER.glob("*.yaml")), key=lambda n: (n == "plain", n))
    return {name: read_format(str(FOLDER / f"{name}.yaml")) for name in names}


def format_named(name: str) -> TraceFormat:
    """Return a shipped format, or the format of a YAML file."""
    known = known_formats()
    if name in known:
        return known[name]
    if name.endswith((".yaml", ".yml")):
        return read_format(name)
    raise ConfigError(
        f"trace format '{name}' is unknown; {nearest(name, tuple(known))}; or give a YAML file "
        "with your own column mapping"
    )


def read_format(path: str) -> TraceFormat:
    """Read a format from a file."""
    lined = read_yaml(path)
    for key in lined.data:
        if key not in KEYS:
            raise _error(lined, (str(key),), f"is unknown; {nearest(str(key), KEYS)}")
    columns = {key: _words(lined, ("columns", key)) for key in _section(lined, "columns", FIELDS)}
    if not columns:
        raise ConfigError(f"{path}: columns: the mapping is missing; write 'arrival: NAME' lines")
    separator = str(lined.data.get("separator", "comma"))
    if separator not in (*SEPARATOR_NAMES, *SEPARATOR_NAMES.values()):
        raise _error(lined, ("separator",), f"must be one of {', '.join(SEPARATOR_NAMES)}")
    unusable = str(lined.data.get("unusable", "refuse"))
    if unusable not in ("refuse", "leave_out"):
        raise _error(lined, ("unusable",), f"must be refuse or leave_out, not {unusable!r}")
    return TraceFormat(
        name=str(lined.data.get("name") or Path(path).stem),
        columns=columns,
        units=_units(lined),
        separator=SEPARATOR_NAMES.get(separator, separator),
        layouts=_layouts(lined),
        leave_out={
            key: _words(lined, ("leave_out", key))
            for key in _section(lined, "leave_out", ("state", "name"))
        },
        empty=_empty(lined),
        unusable=unusable,
        marks=tuple(str(name) for name in lined.data.get("marks") or ()),
        model_batch=str(lined.data.get("model_batch", "")),
        about=str(lined.data.get("about", "")),
        source=str(lined.data.get("source", "")),
    )


def _section(lined: YamlWithLines, key: str, known: Sequence[str]) -> Mapping[str, Any]:
    section = lined.data.get(key) or {}
    if not isinstance(section, Mapping):
        raise _error(lined, (key,), "must be 'field: value' lines")
    for name in section:
        if name not in known:
            raise _error(lined, (key, str(name)), f"is unknown; {nearest(str(name), known)}")
    return section


def _words(lined: YamlWithLines, place: tuple[str, str]) -> tuple[str, ...]:
    value = lined.data[place[0]][place[1]]
    words = value if isinstance(value, list) else [value]
    if not words or not all(isinstance(word, str | int) and str(word).strip() for word in words):
        raise _error(lined, place, "must be a name, or a list of names")
    return tuple(str(word) for word in words)


def _units(lined: YamlWithLines) -> dict[str, str]:
    units = _section(lined, "units", tuple(UNITS))
    for name, unit in units.items():
        if unit not in UNITS[name]:
            raise _error(lined, ("units", name), f"must be one of {', '.join(UNITS[name])}")
    return dict(units)


def _empty(lined: YamlWithLines) -> dict[str, float]:
    empty = _section(lined, "empty", FIELDS)
    for name, value in empty.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _error(lined, ("empty", name), "must be a number")
    return {name: float(value) for name, value in empty.items()}


def _layouts(lined: YamlWithLines) -> tuple[tuple[str, ...], ...]:
    layouts = lined.data.get("layouts") or []
    if not isinstance(layouts, list) or not all(isinstance(names, list) for names in layouts):
        raise _error(lined, ("layouts",), "must be a list of lists of column names")
    return tuple(tuple(str(name) for name in names) for names in layouts)


def _error(lined: YamlWithLines, place: tuple[str, ...], what: str) -> ConfigError:
    return ConfigError(f"{lined.where(place)}: {'.'.join(place)}: {what}")


Parser = Callable[[str], float]
SCALES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0, "h": 3_600.0, "d": 86_400.0}
CLOCK = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
FAULTS = (ValueError, OverflowError)
"""Exceptions of parsers, including overflow of very long numbers."""
GPUS = re.compile(r"gres/gpu(?::([^=,]+))?=(\d+)")


def parse_column(
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


def unit_parser(unit: str) -> Parser:
    if unit == "date":
        return _date_s
    if unit == "clock":
        return _clock_s
    if unit == "tres":
        return _tres_gpus
    if unit == "percent":
        return lambda cell: float(cell) / 100
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


SEPARATORS = (",", "\t", "|", ";")
MOST_NAMES = 20


class TraceLayout(NamedTuple):
    """Layout of the rows of one file.

    Attributes:
        named: the first line contains the names.
        positions: field -> column.
    """

    form: TraceFormat
    separator: str
    header: tuple[str, ...]
    named: bool
    positions: Mapping[str, int]


def detect_layout(
    place: str, first_line: str, form_name: str = "", columns: Mapping[str, str] | None = None
) -> TraceLayout:
    """Detect the layout of a file from its first line.

    `columns` maps fields to columns, or `column:unit`, for other column names.

    Raises:
        ConfigError: columns are missing; the message lists present and expected ones.
    """
    asked = [format_named(form_name)] if form_name else [*known_formats().values()]
    forms = [with_columns(form, columns or {}) for form in asked]
    found = [layout for form in forms for layout in _matching_layouts(form, first_line)]
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


def csv_rows(lines: Iterable[str], separator: str) -> Any:
    """Return a `csv.reader` (its type has no name); with tabs or pipes, quotes are literal."""
    if separator in ",;":
        return csv.reader(lines, delimiter=separator)
    return csv.reader(lines, delimiter=separator, quoting=csv.QUOTE_NONE)


def _matching_layouts(form: TraceFormat, first_line: str) -> Iterable[TraceLayout]:
    """Yield the layouts of the line that have all required columns."""
    for separator in dict.fromkeys((form.separator, *SEPARATORS)):
        header = _split(first_line, separator)
        positions = form.positions(header)
        if not form.missing(positions):
            yield TraceLayout(form, separator, header, True, positions)
    header = _split(first_line, form.separator)
    for names in form.layouts:
        positions = form.positions(names)
        if len(names) == len(header) and _is_data(form, header, positions):
            yield TraceLayout(form, form.separator, names, False, positions)


def _is_marked(layout: TraceLayout) -> bool:
    names = {name.strip().lower() for name in layout.header}
    return all(mark.lower() in names for mark in layout.form.marks)


def _is_data(form: TraceFormat, cells: tuple[str, ...], positions: Mapping[str, int]) -> bool:
    for name in ("arrival", "gpus"):
        cell = cells[positions[name]]
        try:
            if cell.strip() or name not in form.empty:
                unit_parser(form.unit(name))(cell)
        except FAULTS:
            return False
    return True


def _split(line: str, separator: str) -> tuple[str, ...]:
    try:
        return tuple(next(csv_rows([line.rstrip("\r\n")], separator), []))
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
