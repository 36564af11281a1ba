"""A virtual card of one's own, from a file: one that ships, with some of its figures changed.

{"like": "a100", "name": "virtual H100", "idle_w": 70, "default_limit_w": 700}
"""

import json
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.virtual.cards import card_named
from wattloop.virtual.physics import CardModel

__all__ = ["read_card", "write_card"]

_FIELDS = {each.name: each.type for each in fields(CardModel)}


def read_card(path: Path) -> CardModel:
    """The card that a file describes.

    Raises:
        ConfigError: the file cannot be read, or says something that no card has.
    """
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as problem:
        raise ConfigError(f"virtual GPU: {path}: {problem}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"virtual GPU: {path}: write an object such as {{'like': 'a100'}}")
    card = card_named(str(data.pop("like", "h200")))
    changes: dict[str, Any] = {}
    for name, value in data.items():
        if name not in _FIELDS:
            raise ConfigError(
                f"virtual GPU: {path}: no field '{name}'; known: {', '.join(_FIELDS)}"
            )
        is_text = isinstance(getattr(card, name), str)
        if isinstance(value, bool) or not isinstance(value, str if is_text else int | float):
            raise ConfigError(f"virtual GPU: {path}: {name}: {value!r} is no value for it")
        changes[name] = value if is_text else float(value)
    return replace(card, **changes)


def write_card(path: Path, like: str, **changes: float | str) -> CardModel:
    """Write a file for `read_card`; returns the card."""
    card = replace(card_named(like), **changes)  # type: ignore[arg-type]  # `read_card` checks
    said = {name: value for name, value in asdict(card).items() if name in changes}
    path.write_text(json.dumps({"like": like, **said}) + "\n", "utf-8")
    return read_card(path)
