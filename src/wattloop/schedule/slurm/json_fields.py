"""Fields of Slurm's JSON as what they should be; whatever is not becomes the default.

22.05 writes one word where later versions write a list.
"""

from collections.abc import Mapping
from typing import Any

__all__ = ["text_of", "words_of"]

LONGEST = 10_000
"""Of a text."""


def text_of(data: Mapping[str, Any], name: str) -> str:
    """A text; empty when it is none."""
    value = data.get(name)
    if isinstance(value, list) and value and isinstance(value[0], str):
        value = value[0]
    return value[:LONGEST] if isinstance(value, str) else ""


def words_of(data: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Several words, whether written as a list or as one."""
    value = data.get(name)
    if isinstance(value, str):
        return (value,)
    return tuple(word for word in value if isinstance(word, str)) if isinstance(value, list) else ()
