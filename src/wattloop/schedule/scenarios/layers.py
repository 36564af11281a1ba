"""A scenario's text: files that build on each other, changes on top, and which line said what."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.core.yaml_spec import YamlWithLines, nearest, read_yaml

__all__ = ["Layered", "changed", "read_layers"]

MOST_LAYERS = 10
FILES = (
    ("cluster",),
    *(("jobs", "trace", name) for name in ("file", "format")),
    *(("oracle", name) for name in ("throughputs", "cap_curves", "calibrations")),
    *((name, "csv") for name in ("budget", "price", "carbon")),
)
"""Fields that may name files: one, a list, or by name."""
SHORT = {
    ("oracle",): "kind",
    ("engine", "preemption"): "keeps",
    ("jobs", "trace"): "file",
    ("jobs", "users"): "count",
}
"""Sections that may be written as one value -> the field it is, so that others can be merged in."""


@dataclass(frozen=True, slots=True)
class Layered(YamlWithLines):
    """The content of a file merged over that of the file it is `like`."""

    base: YamlWithLines | None = None

    def where(self, place: Sequence[str | int]) -> str:
        """`FILE:LINE` of whichever file says it."""
        if self.base is not None and tuple(place) not in self.lines:
            known = self.base.where(place)
            if self.base.line(place) and len(_known(self.base, place)) > len(_known(self, place)):
                return known
        return YamlWithLines.where(self, place)


def read_layers(path: str, shipped: Mapping[str, Path], depth: int = 0) -> Layered:
    """A file, over the one it is `like` (a shipped name, or a path beside it).

    Mappings are merged field by field; anything else is replaced.

    Raises:
        ConfigError: not there, not YAML, or files that are like each other for ever.
    """
    own = read_yaml(path)
    data = dict(own.data)
    like = data.pop("like", None)
    data = _with_models(data, own)
    for place, name in SHORT.items():
        value = _at(data, place)
        if value is not None and not isinstance(value, Mapping | list):
            data = changed(data, ".".join(place), {name: value})
    if like is None:
        return Layered(own.path, data, own.lines)
    where = own.where(("like",))
    if depth >= MOST_LAYERS:
        raise ConfigError(f"{where}: like: more than {MOST_LAYERS} files are like each other")
    base = read_layers(_found(str(like), own, shipped, where), shipped, depth + 1)
    inherited = {key: value for key, value in base.data.items() if key != "variants"}
    for place in FILES:
        value = _at(inherited, place)
        if value is not None:
            found = _anchored(value, Path(base.path).parent)
            inherited = changed(inherited, ".".join(place), found)
    return Layered(own.path, merged(inherited, data), own.lines, base)


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of both; where both have one, mappings are merged and the rest is `above`'s."""
    found = dict(below)
    for key, value in above.items():
        under = found.get(key)
        both = isinstance(value, Mapping) and isinstance(under, Mapping)
        found[key] = merged(under, value) if both else value  # type: ignore[arg-type] # both say so
    return found


def changed(data: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """With the field at a dotted path set: `jobs.generate.rate_per_s`, `jobs.models.0.batches`.

    Raises:
        ConfigError: it leads through a list that has no such item.
    """
    found: dict[str, Any] = _changed(data, path.split("."), value, path)
    return found


def _changed(data: Any, parts: Sequence[str], value: Any, path: str) -> Any:
    if not parts:
        return value
    first, rest = parts[0], parts[1:]
    if isinstance(data, list):
        if not first.isdecimal() or int(first) >= len(data):
            raise ConfigError(f"{path}: no item '{first}' in a list of {len(data)}")
        found = list(data)
        found[int(first)] = _changed(data[int(first)], rest, value, path)
        return found
    fields = dict(data) if isinstance(data, Mapping) else {}
    fields[first] = _changed(fields.get(first), rest, value, path)
    return fields


def _at(data: Any, place: Sequence[str]) -> Any:
    """What stands there; None when nothing does."""
    for part in place:
        data = data.get(part) if isinstance(data, Mapping) else None
    return data


def _anchored(value: Any, folder: Path) -> Any:
    """Files found from the folder of whoever named them, wherever they are inherited to."""
    if isinstance(value, str):
        return str((folder / value).absolute()) if (folder / value).is_file() else value
    if isinstance(value, list):
        return [_anchored(each, folder) for each in value]
    if isinstance(value, Mapping):
        return {name: _anchored(each, folder) for name, each in value.items()}
    return value


def _with_models(data: dict[str, Any], own: YamlWithLines) -> dict[str, Any]:
    """`jobs.models` may be a file that several scenarios share."""
    name = _at(data, ("jobs", "models"))
    if not isinstance(name, str) or not name.endswith((".yaml", ".yml")):
        return data
    where = own.where(("jobs", "models"))
    try:
        shared = read_yaml(str(Path(own.path).parent / name)).data
    except ConfigError as error:
        raise ConfigError(f"{where}: jobs.models: {error}") from None
    if "models" not in shared:
        raise ConfigError(f"{where}: jobs.models: {name} has no 'models'")
    return changed(data, "jobs.models", shared["models"])


def _found(like: str, own: YamlWithLines, shipped: Mapping[str, Path], where: str) -> str:
    if like in shipped:
        return str(shipped[like])
    beside = Path(own.path).parent / like
    if beside.is_file():
        return str(beside)
    raise ConfigError(
        f"{where}: like: no scenario or file '{like}'; {nearest(like, sorted(shipped))}"
    )


def _known(lined: YamlWithLines, place: Sequence[str | int]) -> list[str | int]:
    known = list(place)
    while known and tuple(known) not in lined.lines:
        known.pop()
    return known
