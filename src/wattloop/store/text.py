"""Text that every database accepts, and every terminal shows."""

import json
from typing import Any

from wattloop.core.control_characters import replaced, replaced_in_json

__all__ = ["json_text", "plain", "plain_data", "plain_json"]


def plain(value: object) -> str:
    """`value` as text without control characters, NUL among them, and halves of characters.

    Command lines and folder names may hold bytes that are no text in any encoding.
    """
    text = value if isinstance(value, str) else str(value)
    return replaced(text).encode("utf-8", "replace").decode()


def json_text(data: Any) -> str:
    """JSON in ASCII, so that whatever a string holds survives: a search tries the very values."""
    return json.dumps(data, separators=(",", ":"), default=str)


def plain_json(data: Any) -> str:
    """The same for what is only shown: without control characters in any text."""
    return replaced_in_json(json_text(data))


def plain_data(text: str) -> Any:
    """The inverse; an earlier release may have stored control characters."""
    return json.loads(replaced_in_json(text))
