"""Files of workloads (JSON, compressed where the name ends in `.gz`), and the cache of traces."""

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from wattloop.core.cache import FileCache
from wattloop.core.errors import ConfigError
from wattloop.core.files import atomic_write, cache_folder
from wattloop.predict.workload.operation import Kind, Operation, Phase
from wattloop.predict.workload.workload import Workload

VERSION = 1
_FORMAT = "wattloop-workload"


def save_workload(workload: Workload, path: str | Path) -> None:
    path = Path(path)
    try:
        atomic_write(path, workload_bytes(workload, compress=path.suffix == ".gz"))
    except OSError as problem:
        raise ConfigError(f"workload {path}: cannot be written: {problem.strerror}") from None


def load_workload(path: str | Path) -> Workload:
    """Read a workload.

    Raises:
        ConfigError: the file is missing, is not a workload, is broken (names the field), or comes
            from a newer Wattloop.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as problem:
        raise ConfigError(f"workload {path}: cannot be read: {problem.strerror}") from None
    try:
        return workload_from_bytes(data)
    except ConfigError as problem:
        raise ConfigError(f"workload {path}: {problem}") from None


def workload_bytes(workload: Workload, *, compress: bool = True) -> bytes:
    """Return the content of a workload's file."""
    data = json.dumps(workload_values(workload), separators=(",", ":")).encode()
    return gzip.compress(data, mtime=0) if compress else data


def workload_from_bytes(data: bytes) -> Workload:
    """Inverse of `workload_bytes`.

    Raises:
        ConfigError: it is not a workload; names the invalid field.
    """
    try:
        values = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except (ValueError, EOFError, OSError) as problem:
        raise ConfigError(f"not JSON ({problem}); trace the model again") from None
    return workload_from(values)


def workload_values(workload: Workload) -> dict[str, object]:
    values: dict[str, object] = {"format": _FORMAT, "version": VERSION}
    for each in fields(Workload):
        values[each.name] = getattr(workload, each.name)
    values["operations"] = [_operation_values(each) for each in workload.operations]
    return values


def workload_from(values: object) -> Workload:
    """Inverse of `workload_values`; an error names the invalid field."""
    if not isinstance(values, dict) or values.get("format") != _FORMAT:
        raise ConfigError(f"field 'format' is not '{_FORMAT}'; give a file of a saved workload")
    version = values.get("version")
    if not isinstance(version, int) or version < 1:
        raise ConfigError("field 'version' is not a whole number; trace the model again")
    if version > VERSION:
        raise ConfigError(
            f"field 'version' is {version}, this Wattloop reads up to {VERSION}; upgrade it or "
            "trace the model again"
        )
    values = {"compile_mode": "", **values}  # files of before it was predicted
    given = {each.name: _checked(each.name, values, _TYPES[each.name]) for each in fields(Workload)}
    given["operations"] = tuple(
        _operation(index, each) for index, each in enumerate(given["operations"])
    )
    for name in ("batch", "accumulate"):
        if given[name] < 1:
            raise ConfigError(
                f"field '{name}' is {given[name]}, not 1 or more; trace the model again"
            )
    if not given["operations"]:
        raise ConfigError("field 'operations' is empty; trace the model again")
    given["notes"] = tuple(str(each) for each in given["notes"])
    return Workload(**given)


def _operation_values(operation: Operation) -> dict[str, object]:
    """Return only what differs from the defaults."""
    values = {name: getattr(operation, name) for name in _OPERATION_FIELDS}
    return {
        name: dict(value) if name == "detail" else value
        for name, value in values.items()
        if name not in _DEFAULTS or value != _DEFAULTS[name]
    }


def _operation(index: int, values: object) -> Operation:
    at = f"operations[{index}]"
    if not isinstance(values, dict):
        raise ConfigError(f"field '{at}' is not an object; trace the model again")
    unknown = values.keys() - _OPERATION_TYPES.keys()
    if unknown:
        raise ConfigError(f"field '{at}.{min(unknown)}' is not known; trace the model again")
    given = {
        name: _checked(name, values, _OPERATION_TYPES[name], f"{at}.")
        for name in (*values, "op", "kind", "phase")
    }
    given["kind"] = _member(Kind, given["kind"], f"{at}.kind")
    given["phase"] = _member(Phase, given["phase"], f"{at}.phase")
    for name in ("inputs", "outputs"):
        if name in given:
            given[name] = tuple(_shape(each, f"{at}.{name}") for each in given[name])
    if given.get("dims") is not None:
        given["dims"] = _shape(given["dims"], f"{at}.dims")
    if "detail" in given:
        given["detail"] = {
            key: tuple(each) if isinstance(each, list) else each
            for key, each in given["detail"].items()
        }
    return Operation(**given)


def _checked(
    name: str, values: Mapping[str, Any], types: tuple[type, ...], before: str = ""
) -> Any:
    if name not in values:
        raise ConfigError(f"field '{before}{name}' is missing; trace the model again")
    value = values[name]
    boolean = isinstance(value, bool) and bool not in types
    if boolean or not isinstance(value, types):
        raise ConfigError(
            f"field '{before}{name}' is {_shown(value)}, not {_TYPE_NAMES[types[0]]}; trace the "
            "model again"
        )
    if isinstance(value, (int, float)) and not 0 <= value < float("inf"):
        raise ConfigError(f"field '{before}{name}' is {value}; it cannot be negative or infinite")
    return value


def _member(kinds: type[Kind] | type[Phase], value: str, name: str) -> Kind | Phase:
    try:
        return kinds(value)
    except ValueError:
        known = ", ".join(kinds)
        raise ConfigError(f"field '{name}' is '{value}'; use one of {known}") from None


def _shape(value: object, name: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(isinstance(each, int) for each in value):
        raise ConfigError(f"field '{name}' is {_shown(value)}, not whole numbers")
    return tuple(value)


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


_NUMBER = (float, int)
_TYPE_NAMES = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list",
    dict: "an object",
}
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("name", "precision", "optimizer", "optimizer_style", "compile_mode"), (str,)),
    **dict.fromkeys(("batch", "accumulate", "parameters", "modules"), (int,)),
    **{each.name: _NUMBER for each in fields(Workload) if each.name.endswith("_bytes")},
    "training": (bool,),
    "operations": (list,),
    "notes": (list,),
    "origin": (dict,),
}
_OPERATION_FIELDS = tuple(each.name for each in fields(Operation))
_OPERATION_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("op", "kind", "phase", "module", "dtype"), (str,)),
    **dict.fromkeys(("kernels", "calls", "count"), (int,)),
    **dict.fromkeys(("flops", "bytes_read", "bytes_written"), _NUMBER),
    **dict.fromkeys(("inputs", "outputs"), (list,)),
    "dims": (list, type(None)),
    "ruled": (bool,),
    "detail": (dict,),
}
_DEFAULTS = {
    each.name: getattr(Operation("", Kind.OTHER, Phase.FORWARD), each.name)
    for each in fields(Operation)
    if each.name not in {"op", "kind", "phase"}
}


# Cache of traces in the user's cache folder.
#
# The key of a trace covers everything that determines it: the configuration or the structure and
# source of the model, shapes, precision, optimizer, rules of the user, and the versions of torch
# and Wattloop. A model without readable source is not cached.

_MOST = 500
"""Largest number of traces; the least recently used are removed."""
COUNTED_BY = "2"
"""Version of the counting rules; a new one invalidates older traces: 2 has cuDNN's workspaces in
the memory of convolutions.
"""


def cached_workload(
    parts: list[str] | None, make: Callable[[], Workload], folder: Path | None = None
) -> Workload:
    """Return the cached workload for the key `parts`, else make and cache one.

    Without parts the key is unknown, so the workload is made.
    """
    if parts is None:
        return make()
    files = FileCache(
        cache_folder("workloads") if folder is None else folder,
        suffix=".json.gz",
        most=_MOST,
        load=workload_from_bytes,
        dump=workload_bytes,
    )
    return files.get([str(VERSION), COUNTED_BY, *parts], make)
