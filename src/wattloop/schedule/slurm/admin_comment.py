"""Our part of a job's AdminComment, which users cannot write: `wattloop:{"cap_w":250}`."""

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["noted", "notes_in"]

MARK = "wattloop:"
LONGEST = 16_000


def notes_in(text: str) -> dict[str, Any]:
    """What we have noted there; empty for nothing."""
    begin, end = _ours(text)
    if begin < 0:
        return {}
    found = json.loads(text[begin + len(MARK) : end])
    return found if isinstance(found, dict) else {}


def noted(text: str, notes: Mapping[str, Any]) -> str:
    """The text with our notes changed: others' words stay, a note of None goes."""
    kept = {**notes_in(text), **notes}
    ours = {name: value for name, value in kept.items() if value is not None}
    said = f"{MARK}{json.dumps(ours, separators=(',', ':'))}" if ours else ""
    begin, end = _ours(text)
    before, after = (text, "") if begin < 0 else (text[:begin], text[end:])
    others = " ".join(f"{before.rstrip()} {after.lstrip()}".split("\n")).strip()
    return f"{others[: LONGEST - len(said)]} {said}".strip()


def _ours(text: str) -> tuple[int, int]:
    """Where our part begins and ends; -1 where there is none."""
    begin = text.find(MARK + "{")
    if begin < 0:
        return -1, -1
    try:
        _, length = json.JSONDecoder().raw_decode(text[begin + len(MARK) :])
    except (ValueError, RecursionError):
        return -1, -1
    return begin, begin + len(MARK) + length
