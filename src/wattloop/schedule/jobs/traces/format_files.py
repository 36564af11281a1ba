"""Formats from files: ours, and the user's."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.core.yaml_spec import YamlWithLines, nearest, read_yaml
from wattloop.schedule.jobs.traces.format import FIELDS, UNITS, TraceFormat

__all__ = ["format_named", "known_formats", "read_format"]

FOLDER = Path(__file__).parent / "formats"
KEYS = (
    *("columns", "units", "separator", "layouts", "leave_out", "empty", "unusable"),
    *("marks", "model_batch", "about", "source", "name"),
)
SEPARATORS = {"comma": ",", "tab": "\t", "pipe": "|", "semicolon": ";"}


@cache
def known_formats() -> Mapping[str, TraceFormat]:
    """The shipped ones, by name; `plain` last."""
    names = sorted((path.stem for path in FOLDER.glob("*.yaml")), key=lambda n: (n == "plain", n))
    return {name: read_format(str(FOLDER / f"{name}.yaml")) for name in names}


def format_named(name: str) -> TraceFormat:
    """A shipped format, or the one in a YAML file.

    Raises:
        ConfigError: there is no such format; names near ones.
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
    """A format from a file.

    Raises:
        ConfigError: `FILE:LINE: field: what is wrong`.
    """
    lined = read_yaml(path)
    for key in lined.data:
        if key not in KEYS:
            raise _error(lined, (str(key),), f"is unknown; {nearest(str(key), KEYS)}")
    columns = {key: _words(lined, ("columns", key)) for key in _section(lined, "columns", FIELDS)}
    if not columns:
        raise ConfigError(f"{path}: columns: which column is which? Write 'arrival: NAME' lines")
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
