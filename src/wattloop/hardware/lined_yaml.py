"""YAML whose every field knows its line, and messages that use it."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.core.user_path import user_path

__all__ = ["LinedData", "lined", "nearest", "read_lined"]

Place = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class LinedData:
    """The content of a file, and on which line each of its fields stands."""

    path: str
    data: dict[str, Any]
    lines: Mapping[Place, int]

    def where(self, place: Sequence[str | int]) -> str:
        """`FILE:LINE`, of the field or of the nearest one around it."""
        line = self.line(place)
        return f"{self.path}:{line}" if line else self.path

    def line(self, place: Sequence[str | int]) -> int:
        """Its line; 0 when it is not in the file."""
        known = list(place)
        while known and tuple(known) not in self.lines:
            known.pop()
        return self.lines.get(tuple(known), 0)


def read_lined(name: str) -> LinedData:
    """A file of `key: value` lines.

    Raises:
        ConfigError: not there, not YAML, or a key that is given twice, with its line.
    """
    path = user_path(name)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{name}: cannot be read: {reason}") from None
    return lined(text, name)


def lined(text: str, name: str) -> LinedData:
    """The same for text that came from the file `name`."""
    import yaml

    loader = yaml.SafeLoader(text)
    try:
        root: Any = loader.get_single_node()
        if root is None:
            return LinedData(name, {}, {})
        if root.id != "mapping":
            raise ConfigError(f"{name}:1: write 'key: value' lines, not a {root.id}")
        lines: dict[Place, int] = {}
        _note_lines(name, root, (), lines)
        return LinedData(name, loader.construct_document(root), lines)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        line = f":{mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{name}{line}: not valid YAML: {problem}") from None
    finally:
        loader.dispose()


def nearest(word: str, known: Sequence[str]) -> str:
    """What to say of a word that is not known."""
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return f"did you mean '{near[0]}'?" if near else f"known are {', '.join(known)}"


def _note_lines(name: str, node: Any, place: Place, lines: dict[Place, int]) -> None:
    if node.id == "sequence":
        for number, item in enumerate(node.value):
            lines[*place, number] = item.start_mark.line + 1
            _note_lines(name, item, (*place, number), lines)
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
        _note_lines(name, value, here, lines)
