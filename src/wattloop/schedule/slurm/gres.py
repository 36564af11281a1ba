"""GPUs in Slurm's texts: `gpu:a100:4(S:0-1)`, `gres:gpu:2`, `gpu:a100:2(IDX:0,2-3)`."""

import re
from typing import NamedTuple

__all__ = ["Gpus", "asked_gpus", "used_mask"]

ITEM = re.compile(
    r"(?:gres[:/])?gpu(?:[:/](?P<type>[A-Za-z_][\w.+-]{0,63}))?(?:[:=](?P<count>\d{1,6}))?"
    r"(?P<rest>\(.*\))?",
    re.ASCII,
)
INDICES = re.compile(r"\(IDX:([\d,-]{1,2000})\)", re.ASCII)
MOST_GPUS = 1_024
"""GPUs of one node."""


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


def used_mask(text: str) -> int:
    """The GPUs of a node as a bit mask, by the numbers in the text; 0 where it has none."""
    mask = 0
    for item in _items(text):
        match = INDICES.search(item)
        if match is None or ITEM.fullmatch(item) is None:
            continue
        for piece in match.group(1).split(","):
            first, _, last = piece.partition("-")
            if first.isdigit() and (not last or last.isdigit()):
                for number in range(int(first), min(int(last or first), MOST_GPUS) + 1):
                    mask |= 1 << number
    return mask


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
