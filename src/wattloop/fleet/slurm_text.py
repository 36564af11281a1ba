"""Slurm's notation of node lists, and Wattloop's notes in a job's AdminComment."""

import json
import re
from collections.abc import Mapping
from typing import Any

from wattloop.core.errors import SlurmError

MOST_NODES = 100_000
PART = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
MARK = "wattloop:"
LONGEST = 16_000


def expand_nodes(text: str) -> list[str]:
    """Expand a node list in Slurm's notation; numbers keep their leading zeros.

    Raises:
        SlurmError: it is not a node list, or has more than 100,000 names.
    """
    found: list[str] = []
    for part in PART.findall(text):
        found += _expanded_part(part, MOST_NODES - len(found))
    return found


def _expanded_part(part: str, most: int) -> list[str]:
    begin = part.find("[")
    if begin < 0:
        return [part]
    end = part.index("]", begin)
    inside: list[str] = []
    for piece in part[begin + 1 : end].split(","):
        match = RANGE.fullmatch(piece)
        if match is None:
            raise SlurmError(f"Slurm: {part[:80]!r} is not a list of nodes")
        first, last = match.group(1), match.group(2) or match.group(1)
        if not 0 <= int(last) - int(first) < most:
            raise SlurmError(f"Slurm: {part[:80]!r} names too many nodes, or none")
        inside += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    rest = _expanded_part(part[end + 1 :], most) if part[end + 1 :] else [""]
    if len(inside) * len(rest) > most:
        raise SlurmError(f"Slurm: {part[:80]!r} names too many nodes")
    return [f"{part[:begin]}{number}{tail}" for number in inside for tail in rest]


def parse_notes(text: str) -> dict[str, Any]:
    """Return Wattloop's notes in an AdminComment; empty without notes."""
    begin, end = _ours(text)
    if begin < 0:
        return {}
    found = json.loads(text[begin + len(MARK) : end])
    return found if isinstance(found, dict) else {}


def format_notes(text: str, notes: Mapping[str, Any]) -> str:
    """Return an AdminComment with changed notes; other text stays, a note of None is removed."""
    kept = {**parse_notes(text), **notes}
    ours = {name: value for name, value in kept.items() if value is not None}
    note = f"{MARK}{json.dumps(ours, separators=(',', ':'))}" if ours else ""
    begin, end = _ours(text)
    before, after = (text, "") if begin < 0 else (text[:begin], text[end:])
    others = " ".join(f"{before.rstrip()} {after.lstrip()}".split("\n")).strip()
    return f"{others[: LONGEST - len(note)]} {note}".strip()


def _ours(text: str) -> tuple[int, int]:
    """Return the start and end of Wattloop's notes; -1 without notes."""
    begin = text.find(MARK + "{")
    if begin < 0:
        return -1, -1
    try:
        _, length = json.JSONDecoder().raw_decode(text[begin + len(MARK) :])
    except (ValueError, RecursionError):
        return -1, -1
    return begin, begin + len(MARK) + length
