"""Slurm's short form of many node names: `n[1-3,07],gpu2`."""

import re

from wattloop.core.errors import SlurmError

__all__ = ["expanded"]

MOST_NODES = 100_000
PART = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)


def expanded(text: str) -> list[str]:
    """Every name, in order; digits keep their leading zeros.

    Raises:
        SlurmError: it is no such list, or has more than 100,000 names.
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
            raise SlurmError(f"Slurm: {part[:80]!r} is no list of nodes")
        first, last = match.group(1), match.group(2) or match.group(1)
        if not 0 <= int(last) - int(first) < most:
            raise SlurmError(f"Slurm: {part[:80]!r} names too many nodes, or none")
        inside += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    rest = _expanded_part(part[end + 1 :], most) if part[end + 1 :] else [""]
    if len(inside) * len(rest) > most:
        raise SlurmError(f"Slurm: {part[:80]!r} names too many nodes")
    return [f"{part[:begin]}{number}{tail}" for number in inside for tail in rest]
