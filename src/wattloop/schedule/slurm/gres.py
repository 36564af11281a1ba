"""GPUs in Slurm's texts: `gpu:a100:4(S:0-1)`, `gres:gpu:2`."""

import re
from typing import NamedTuple

__all__ = ["Gpus", "asked_gpus"]

ITEM = re.compile(
    r"(?:gres[:/])?gpu(?:[:/](?P<type>[A-Za-z_][\w.+-]{0,63}))?(?:[:=](?P<count>\d{1,6}))?"
    r"(?P<rest>\(.*\))?",
    re.ASCII,
)


class Gpus(NamedTuple):
    """How many of which type; the type is empty where none is named."""

    type_name: str
    number: int


def asked_gpus(text: str) -> Gpus:
    """GPUs that a text names, others left out; of several types the first, with all counts."""
    type_name, count = "", 0
    for item in _items(text):
        match = ITEM.fullmatch(item)
        if match is not None:
            type_name = type_name or (match["type"] or "").lower()
            count += int(match["count"] or 1)
    return Gpus(type_name, count)


def _items(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    items, depth = [""], 0
    for character in text[:10_000]:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            items.append("")
        else:
            items[-1] += character
    return items
