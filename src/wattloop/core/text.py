"""Text that terminals and databases accept: no control characters, no NUL."""

import json
import re
from typing import Any

# Control characters. A run's name, tag or command may come from another machine. An escape sequence
# in it could clear the screen, rename the window, write to the clipboard or hide a line. Marks of
# writing direction could make a text read as another one.

# C0 but for tab and line feed, DEL, C1, and marks that reverse the direction of writing
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


# the same as JSON in ASCII writes them; an even number of backslashes before is text
_IN_JSON = re.compile(
    r"(?<!\\)((?:\\\\)*)\\(?:[bfr]|u00(?:0[0-8bcdefBCDEF]|1[0-9a-fA-F]|7[fF]|[89][0-9a-fA-F])"
    r"|u202[a-eA-E]|u206[6-9])"
)


def replaced(text: str) -> str:
    """Replace each control character by a replacement character, for text that is stored."""
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)


def replaced_in_json(text: str) -> str:
    """Replace them in all texts of a JSON document in ASCII."""
    return _IN_JSON.sub(r"\1\\ufffd", text) if "\\" in text else text


def escaped(text: str) -> str:
    r"""Escape each control character as `\x1b`, for text that is shown."""
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


_SECRETS = re.compile(r"([?&][^=&#]*(?:pass|token|secret|key|auth)[^=&#]*=)[^&#]*", re.IGNORECASE)


def without_query_secrets(url: str) -> str:
    """Hide the values of a URL's query that may be secrets: `?password=***`."""
    return _SECRETS.sub(r"\1***", url)


def plain(value: object) -> str:
    """Return `value` as text without control characters, NUL, and lone surrogates.

    Command lines and folder names may hold bytes that are not text in any encoding.
    """
    text = value if isinstance(value, str) else str(value)
    return replaced(text).encode("utf-8", "replace").decode()


def json_text(data: Any) -> str:
    """Return JSON in ASCII, which preserves any string: a search tries exactly these values."""
    return json.dumps(data, separators=(",", ":"), default=str)


def plain_json(data: Any) -> str:
    """Return JSON for display: without control characters in any text."""
    return replaced_in_json(json_text(data))


def plain_data(text: str) -> Any:
    """Parse JSON; an earlier release may have stored control characters."""
    return json.loads(replaced_in_json(text))
