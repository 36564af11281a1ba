"""Validation of JSON data against the type hints of a record."""

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Union

LARGEST_INT = 2**63
"""Neither a database nor a float can hold every integer that JSON can."""


def shape_fault(data: Any, hint: Any, where: str = "") -> str:
    """Return the first fault of `data` as JSON of `hint`, such as `domains.0.name: not text`; empty
    if valid.

    Records (named tuples, dataclasses) are objects with their fields; fields that they do not know
    are ignored.
    """
    origin = typing.get_origin(hint)
    if hint is Any:
        return ""
    if origin in (Union, types.UnionType):
        faults = [shape_fault(data, each, where) for each in typing.get_args(hint)]
        return "" if "" in faults else faults[0]
    if origin is not None:
        return _container_fault(data, origin, typing.get_args(hint), where)
    if _fields_of(hint) is not None:
        return _record_fault(data, hint, where)
    is_sound, expected = _plain(data, hint)
    return "" if is_sound else f"{where or 'it'}: not {expected}"


def _plain(data: Any, hint: Any) -> tuple[bool, str]:
    if hint is None or hint is type(None):
        return data is None, "null"
    if isinstance(hint, type) and issubclass(hint, Enum):
        known = [one.value for one in hint]
        return isinstance(data, str) and data in known, f"one of {', '.join(map(str, known))}"
    is_number = isinstance(data, int | float) and not isinstance(data, bool)
    is_number = is_number and (isinstance(data, float) or abs(data) < LARGEST_INT)
    if hint is float:
        return is_number, "a number"
    if hint is int:
        return is_number and isinstance(data, int), "a whole number"
    names = {str: "text", bool: "true or false"}
    return isinstance(data, hint), names.get(hint, f"a {getattr(hint, '__name__', hint)}")


def _container_fault(data: Any, origin: Any, inner: tuple[Any, ...], where: str) -> str:
    if issubclass(origin, Mapping):
        if not isinstance(data, Mapping):
            return f"{where or 'it'}: not an object"
        rows = data.items()
    else:
        if not isinstance(data, Sequence) or isinstance(data, str):
            return f"{where or 'it'}: not a list"
        rows = enumerate(data)  # type: ignore[assignment] # pairs of a place and a value, too
    hint = next((each for each in inner[::-1] if each is not Ellipsis), Any)
    faults = (shape_fault(value, hint, _below(where, key)) for key, value in rows)
    return next(filter(None, faults), "")


def _record_fault(data: Any, record: Any, where: str) -> str:
    if not isinstance(data, Mapping):
        return f"{where or 'it'}: not an object"
    known = _fields_of(record)
    assert known is not None  # the caller has checked
    for name, (hint, is_needed) in known.items():
        if name in data:
            fault = shape_fault(data[name], hint, _below(where, name))
            if fault:
                return fault
        elif is_needed:
            return f"{_below(where, name)}: missing"
    return ""


def _below(where: str, key: object) -> str:
    return f"{where}.{str(key)[:40]}" if where else str(key)[:40]


@cache
def _fields_of(record: Any) -> dict[str, tuple[Any, bool]] | None:
    """Return field -> its hint, and whether it has no default; None for what is not a record."""
    if not isinstance(record, type):
        return None
    if is_dataclass(record):
        lacking = [f.name for f in fields(record) if f.default is f.default_factory]
    elif issubclass(record, tuple) and hasattr(record, "_fields"):
        defaults = getattr(record, "_field_defaults", {})
        lacking = [name for name in record._fields if name not in defaults]
    else:
        return None
    hints = typing.get_type_hints(record)
    return {name: (hint, name in lacking) for name, hint in hints.items()}
