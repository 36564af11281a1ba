"""Values as traces write them, a column at a time: fast when all are well, exact when not."""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["FAULTS", "Parser", "numbers", "parser_of", "tres_type"]

Parser = Callable[[str], float]
SCALES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0, "h": 3_600.0, "d": 86_400.0}
CLOCK = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
FAULTS = (ValueError, OverflowError)
"""What parsers raise: four hundred digits are no number of days."""
GPUS = re.compile(r"gres/gpu(?::([^=,]+))?=(\d+)")


def numbers(
    cells: Sequence[str], parse: Parser, empty: float | None = None, *, needed: bool = True
) -> tuple[NDArray[np.float64], dict[int, str]]:
    """The values of a column, and what is wrong with those that have none.

    Args:
        cells: as written.
        parse: one of them; raises one of `FAULTS`.
        empty: what an empty one stands for; None for nothing.
        needed: an empty one, or one that says NaN, is wrong; otherwise it is NaN.
    """
    try:
        found = np.fromiter(map(parse, cells), np.float64, len(cells))
    except FAULTS:
        found = np.fromiter((_one(cell, parse, empty) for cell in cells), np.float64, len(cells))
    wrong = {}
    for row in np.flatnonzero(~np.isfinite(found)).tolist():
        cell = cells[row].strip()
        if needed or cell.lower() not in ("", "nan"):
            wrong[row] = "is empty" if not cell else "is not a number"
    return found, wrong


def parser_of(unit: str) -> Parser:
    """How values of a unit are read."""
    if unit == "date":
        return _date_s
    if unit == "clock":
        return _clock_s
    if unit == "tres":
        return _tres_gpus
    if unit == "percent":
        return _per_cent
    scale = SCALES.get(unit, 1.0)
    return float if scale == 1.0 else lambda cell: float(cell) * scale


def tres_type(cell: str) -> str:
    """`a100` of `cpu=8,gres/gpu:a100=2,gres/gpu=2`; empty when it names none."""
    return next((kind for kind, _ in GPUS.findall(cell) if kind), "")


def _one(cell: str, parse: Parser, empty: float | None) -> float:
    if empty is not None and not cell.strip():
        return empty
    try:
        return parse(cell)
    except FAULTS:
        return np.nan


def _date_s(cell: str) -> float:
    """ISO 8601; without a zone it is taken for UTC, as all others of its file."""
    moment = datetime.fromisoformat(cell.strip())
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


@lru_cache(maxsize=1 << 16)
def _clock_s(cell: str) -> float:
    """Slurm's elapsed time: `3-04:05:06`, `04:05:06`, `05:06`."""
    match = CLOCK.fullmatch(cell.strip())
    if match is None:
        raise ValueError(cell)
    days, hours, minutes, seconds = match.groups()
    return (
        int(days or 0) * 86_400.0 + int(hours or 0) * 3_600.0 + int(minutes) * 60 + float(seconds)
    )


@lru_cache(maxsize=1 << 16)
def _tres_gpus(cell: str) -> float:
    """GPUs of a job: Slurm gives the sum beside the figures by type, or those only."""
    found = [(kind, int(count)) for kind, count in GPUS.findall(cell)]
    total = [count for kind, count in found if not kind]
    return float(total[0] if total else sum(count for _, count in found))


def _per_cent(cell: str) -> float:
    return float(cell) / 100
