"""Fields of Slurm's JSON as what they should be; whatever is not becomes the default.

22.05 writes numbers and null; later versions write {"set": true, "number": 5} and lists of states.
"""

from collections.abc import Mapping
from typing import Any

__all__ = ["number_of", "text_of", "words_of"]

LONGEST = 70_000
"""Of a text; a comment of Slurm's own limit fits."""


def text_of(data: Mapping[str, Any], name: str) -> str:
    """A text; empty when it is none."""
    value = data.get(name)
    if isinstance(value, list) and value and isinstance(value[0], str):
        value = value[0]
    return value[:LONGEST] if isinstance(value, str) else ""


def number_of(data: Mapping[str, Any], name: str) -> int | None:
    """A whole number of 0 or more; None when it is none, not set, or infinite."""
    value = data.get(name)
    if isinstance(value, Mapping):
        if value.get("infinite") or not value.get("set", True):
            return None
        value = value.get("number")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**62:
        return None
    return int(value)


def words_of(data: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Several words, whether written as a list or as one."""
    value = data.get(name)
    if isinstance(value, str):
        return (value,)
    return tuple(word for word in value if isinstance(word, str)) if isinstance(value, list) else ()
