"""Faults of a specification in words: file, line, field, what is wrong, what is allowed."""

import types
import typing
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel, ValidationError

from wattloop.hardware.lined_yaml import LinedData, nearest

__all__ = ["Fault", "faults_of", "said"]

Fault = tuple[tuple[str | int, ...], str]
"""Where it is in the file, and what is wrong there."""

WORDS = {
    "missing": "it is missing",
    "dict_type": "write 'key: value' lines",
    "model_type": "write 'key: value' lines",
    "list_type": "write a list such as [1, 2]",
}
"""Pydantic's name of a fault -> what we say."""


def said(faults: Iterable[Fault], source: LinedData | None, *, otherwise: str) -> str:
    """One line per fault, in the order of the file; without one, `otherwise` is to blame."""
    ordered = list(dict.fromkeys(faults))
    if source is not None:
        ordered.sort(key=lambda fault: source.line(fault[0]))
    return "\n".join(
        _line(place, message, otherwise if source is None else source.where(place))
        for place, message in ordered
    )


def faults_of(error: ValidationError, model: type[BaseModel]) -> list[Fault]:
    """What pydantic found, by the names people write."""
    return [(_place(fault["loc"], model), _message(fault, model)) for fault in error.errors()]


def _line(place: tuple[str | int, ...], message: str, where: str) -> str:
    field = ".".join(str(part) for part in place)
    return f"{where}: {field}: {message}" if field else f"{where}: {message}"


def _message(fault: Any, model: type[BaseModel]) -> str:
    kind = fault["type"]
    if kind == "extra_forbidden":
        place = _place(fault["loc"], model)
        known = _fields_at(place[:-1], model)
        return f"unknown field; {nearest(str(place[-1]), known)}"
    if kind in WORDS:
        return WORDS[kind]
    message = str(fault["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    given = fault.get("input")
    if kind != "value_error" and isinstance(given, str | int | float | bool):
        message += f", not {given!r}"
    return message


def _place(loc: tuple[str | int, ...], model: type[BaseModel]) -> tuple[str | int, ...]:
    """Without the names that pydantic gives to the branches of a union."""
    place: list[str | int] = []
    at: Any = model
    for part in loc:
        step = _below(at, part)
        if step is None and not isinstance(part, int) and not _is_model(at):
            continue
        place.append(part)
        at = step
    return tuple(place)


def _fields_at(place: tuple[str | int, ...], model: type[BaseModel]) -> list[str]:
    at: Any = model
    for part in place:
        at = _below(at, part)
    if not _is_model(at):
        return []
    fields: list[str] = []
    for name, info in at.model_fields.items():
        choices = [choice for choice in _choices(info.validation_alias) if choice]
        fields += choices or [info.alias or name]
    return fields


def _is_model(at: Any) -> bool:
    return isinstance(at, type) and issubclass(at, BaseModel)


def _below(at: Any, part: str | int) -> Any:
    """The type of a field or item of `at`; None when it has none of that name."""
    if _is_model(at):
        for name, info in at.model_fields.items():
            names = {name, info.alias, *_choices(info.validation_alias)}
            if part in names:
                return _plain(info.annotation)
        return None
    origin, arguments = typing.get_origin(at), typing.get_args(at)
    if origin is dict:
        return _plain(arguments[1])
    if origin is list and isinstance(part, int):
        return _plain(arguments[0])
    return None


def _plain(annotation: Any) -> Any:
    """The model in `Model | None`; otherwise the container in it; otherwise the type itself."""
    if typing.get_origin(annotation) is typing.Annotated:
        return _plain(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        parts = [_plain(part) for part in typing.get_args(annotation)]
        models = [part for part in parts if _is_model(part)]
        containers = [part for part in parts if typing.get_origin(part) in (dict, list)]
        return next(iter([*models, *containers]), None)
    return annotation


def _choices(alias: Any) -> list[Any]:
    return list(getattr(alias, "choices", [alias]))
