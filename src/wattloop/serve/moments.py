"""Days and moments as people and programs write them in a query."""

import re
from datetime import UTC, date, datetime, timedelta
from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema

__all__ = ["Moment", "moment_wall_s"]

DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
# RFC 3339, section 5.6: a date-time names its offset, so that it means the same everywhere
DATE_TIME = re.compile(
    r"(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}):(\d{2})(\.\d+)?(Z|[+-]\d{2}:\d{2})", re.ASCII
)
LEAP = "60"


def moment_wall_s(text: str) -> float | None:
    """`2026-01-31`, which begins at this server's midnight, or `2026-01-31T12:00:00Z`.

    None for an empty text.

    Raises:
        ValueError: neither of them.
    """
    if not text:
        return None
    if DAY.fullmatch(text):
        return _midnight(date.fromisoformat(text))
    found = DATE_TIME.fullmatch(text.upper())
    if found is None:
        raise ValueError("neither a day nor a moment with its offset")
    minute, second, fraction, offset = found.groups()
    is_leap = second == LEAP
    begun = datetime.fromisoformat(f"{minute}:{'59' if is_leap else second}{offset}")
    return begun.timestamp() + float(fraction or 0.0) + is_leap


def _midnight(day: date) -> float:
    begun = datetime(day.year, day.month, day.day)
    try:
        return begun.astimezone().timestamp()
    except (OverflowError, ValueError, OSError):  # years that no clock of this machine has had
        return (begun.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(seconds=1)


def _checked(text: str) -> str:
    try:
        moment_wall_s(text)
    except ValueError as error:
        raise ValueError(f"{error}; write 2026-01-31 or 2026-01-31T12:00:00Z") from None
    return text


Moment = Annotated[
    str,
    AfterValidator(_checked),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "format": "date"},
                {"type": "string", "format": "date-time"},
                {"type": "string", "const": ""},
            ],
            "examples": ["2026-01-31", "2026-01-31T12:00:00Z"],
        }
    ),
]
"""A day, a moment with its offset, or nothing."""
