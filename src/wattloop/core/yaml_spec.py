"""YAML with line numbers, and validation errors that name file, line and field."""

import difflib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

Place = tuple[str | int, ...]
MOST_FIELDS = 100_000
"""Of a short text: aliases of aliases could make any number."""


@dataclass(frozen=True, slots=True)
class YamlWithLines:
    """The content of a YAML file, and the line of each of its fields."""

    path: str
    data: dict[str, Any]
    lines: Mapping[Place, int]

    def where(self, place: Sequence[str | int]) -> str:
        """Return `FILE:LINE` of the field or of the nearest one around it."""
        line = self.line(place)
        return f"{self.path}:{line}" if line else self.path

    def line(self, place: Sequence[str | int]) -> int:
        """Return the line; 0 when it is not in the file."""
        known = list(place)
        while known and tuple(known) not in self.lines:
            known.pop()
        return self.lines.get(tuple(known), 0)


def read_yaml(name: str) -> YamlWithLines:
    """Read a file of `key: value` lines.

    Raises:
        ConfigError: missing, not YAML, or a duplicate key, with its line.
    """
    path = user_path(name)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{name}: cannot be read: {reason}") from None
    return load_yaml(text, name)


def load_yaml(text: str, name: str) -> YamlWithLines:
    """Parse text that came from the file `name`."""
    import yaml

    loader = yaml.SafeLoader(text)
    try:
        root: Any = loader.get_single_node()
        if root is None:
            return YamlWithLines(name, {}, {})
        if root.id != "mapping":
            raise ConfigError(f"{name}:1: write 'key: value' lines, not a {root.id}")
        lines: dict[Place, int] = {}
        _note_lines(name, root, (), lines, max(MOST_FIELDS, len(text)))
        return YamlWithLines(name, loader.construct_document(root), lines)
    except RecursionError:
        raise ConfigError(f"{name}: nested too deeply, or within itself") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{name}{line}: not valid YAML: {problem}") from None
    finally:
        loader.dispose()


def nearest(word: str, known: Sequence[str]) -> str:
    """Suggest the nearest known word for an unknown one."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean '{near[0]}'?" if near else f"known are {', '.join(known)}"


def _note_lines(name: str, node: Any, place: Place, lines: dict[Place, int], most: int) -> None:
    if len(lines) > most:  # a text has fewer fields than letters
        raise ConfigError(f"{name}: its aliases (*name) make more than {most:,} fields; use fewer")
    if node.id == "sequence":
        for number, item in enumerate(node.value):
            lines[*place, number] = item.start_mark.line + 1
            _note_lines(name, item, (*place, number), lines, most)
    if node.id != "mapping":
        return
    for key, value in node.value:
        line = key.start_mark.line + 1
        here = (*place, str(key.value))
        if here in lines:
            raise ConfigError(
                f"{name}:{line}: '{key.value}' is given twice, first on line {lines[here]}; keep "
                "one"
            )
        lines[here] = line
        _note_lines(name, value, here, lines, most)


Fault = tuple[tuple[str | int, ...], str]
"""Place in the file, and the fault."""
WORDS = {
    "missing": "it is missing",
    "dict_type": "write 'key: value' lines",
    "model_type": "write 'key: value' lines",
    "list_type": "write a list such as [1, 2]",
}
"""Pydantic's name of a fault -> our message."""


def format_errors(faults: Iterable[Fault], source: YamlWithLines | None, *, otherwise: str) -> str:
    """Format one line per fault, in the order of the file; without one, `otherwise` is to blame."""
    ordered = list(dict.fromkeys(faults))
    if source is not None:
        ordered.sort(key=lambda fault: source.line(fault[0]))
    return "\n".join(
        _line(place, message, otherwise if source is None else source.where(place))
        for place, message in ordered
    )


def validation_errors(error: "ValidationError", model: "type[BaseModel]") -> list[Fault]:
    """Return pydantic's errors, by the names users write."""
    return [(_place(fault["loc"], model), _message(fault, model)) for fault in error.errors()]


def _line(place: tuple[str | int, ...], message: str, where: str) -> str:
    field = ".".join(str(part) for part in place)
    return f"{where}: {field}: {message}" if field else f"{where}: {message}"


def _message(fault: Any, model: "type[BaseModel]") -> str:
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


def _place(loc: tuple[str | int, ...], model: "type[BaseModel]") -> tuple[str | int, ...]:
    """Remove the names that pydantic gives to the branches of a union."""
    place: list[str | int] = []
    at: Any = model
    for part in loc:
        step = _below(at, part)
        if step is None and not isinstance(part, int) and not _is_model(at):
            continue
        place.append(part)
        at = step
    return tuple(place)


def _fields_at(place: tuple[str | int, ...], model: "type[BaseModel]") -> list[str]:
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
    from pydantic import BaseModel

    return isinstance(at, type) and issubclass(at, BaseModel)


def _below(at: Any, part: str | int) -> Any:
    """Return the type of a field or item of `at`; None when it has none of that name."""
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
    """Return the model in `Model | None`, else the container in it, else the type itself."""
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
