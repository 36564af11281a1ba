"""Text that every database accepts."""

import json
from typing import Any

__all__ = ["json_text", "plain"]


def plain(value: object) -> str:
    """`value` as text without what databases refuse: NUL and halves of characters.

    Command lines and folder names may hold bytes that are no text in any encoding.
    """
    text = value if isinstance(value, str) else str(value)
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def json_text(data: Any) -> str:
    """JSON in ASCII, so that whatever a string holds survives."""
    return json.dumps(data, separators=(",", ":"), default=str)
