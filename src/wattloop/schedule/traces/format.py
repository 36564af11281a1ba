"""Trace formats: the meaning and unit of each column, shipped or from the user's file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

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
        name: name of the format.
        columns: field -> names that a column with this meaning may have, the best first.
        units: field -> unit, where it is not the usual one.
        separator: separator of the values of a row.
        layouts: names of the columns for files without a header, by number of columns.
        leave_out: field -> patterns (`*` is anything) of rows that are not finished jobs.
        empty: field -> value of an empty cell.
        unusable: treatment of rows with wrong values: `refuse` or `leave_out`.
        marks: names that a file must have for automatic detection of this format.
        model_batch: pattern that splits a value into a model's name and its batch.
        about, source: for people.
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
        """Return field -> column index for these names; missing fields are left out."""
        places = {name.strip().lower(): place for place, name in reversed([*enumerate(header)])}
        found = {}
        for name, choices in self.columns.items():
            known = [places[choice.lower()] for choice in choices if choice.lower() in places]
            if known:
                found[name] = known[0]
        return found

    def missing(self, found: Mapping[str, int]) -> list[str]:
        """Return descriptions of the required fields that are missing."""
        lacking = [name for name in ("arrival", "gpus") if name not in found]
        if not any(all(name in found for name in way) for way in EITHER):
            lacking.append("duration")
        return [self._said(name) for name in lacking]

    def _said(self, name: str) -> str:
        choices = self.columns.get(name, ())
        return f"{name} (expected as {' or '.join(choices)})" if choices else name


def with_columns(base: TraceFormat, given: Mapping[str, str]) -> TraceFormat:
    """Return the format with other column names: `{"arrival": "t0:ms"}`.

    Raises:
        ConfigError: unknown field or unit.
    """
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


SEPARATORS = {"comma": ",", "tab": "\t", "pipe": "|", "semicolon": ";"}


@cache
def known_formats() -> Mapping[str, TraceFormat]:
    """Return the shipped formats by name; `plain` last."""
    names = sorted((path.stem for path in FOLDER.glob("*.yaml")), key=lambda n: (n == "plain", n))
    return {name: read_format(str(FOLDER / f"{name}.yaml")) for name in names}


def format_named(name: str) -> TraceFormat:
    """Return a shipped format, or the format of a YAML file.

    Raises:
        ConfigError: unknown format; the message has the nearest names.
    """
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
    """Read a format from a file.

    Raises:
        ConfigError: `FILE:LINE: field: what is wrong`.
    """
    lined = read_yaml(path)
    for key in lined.data:
        if key not in KEYS:
            raise _error(lined, (str(key),), f"is unknown; {nearest(str(key), KEYS)}")
    columns = {key: _words(lined, ("columns", key)) for key in _section(lined, "columns", FIELDS)}
    if not columns:
        raise ConfigError(f"{path}: columns: the mapping is missing; write 'arrival: NAME' lines")
    separator = str(lined.data.get("separator", "comma"))
    if separator not in (*SEPARATORS, *SEPARATORS.values()):
        raise _error(lined, ("separator",), f"must be one of {', '.join(SEPARATORS)}")
    unusable = str(lined.data.get("unusable", "refuse"))
    if unusable not in ("refuse", "leave_out"):
        raise _error(lined, ("unusable",), f"must be refuse or leave_out, not {unusable!r}")
    return TraceFormat(
        name=str(lined.data.get("name") or Path(path).stem),
        columns=columns,
        units=_units(lined),
        separator=SEPARATORS.get(separator, separator),
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
