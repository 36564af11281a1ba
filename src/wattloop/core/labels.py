"""Labels of efficiency (low, medium, high), and detection of values below those of their peers."""

from collections.abc import Mapping, Sequence
from enum import StrEnum

LOW = 0.4
"""Below this a code is of low energy efficiency (EnergyScopium, legend of its dashboard)."""
HIGH = 0.9
"""Above this it is of high energy efficiency (same)."""
IMBALANCE_RATIO = 0.75
"""A device or node is out of balance below three quarters of the median of its peers. Our
choice."""


class Label(StrEnum):
    """Efficiency in one word."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


def label_of(efficiency: float) -> Label:
    """Return `low` below 0.4, `high` above 0.9, `medium` between."""
    if efficiency < LOW:
        return Label.LOW
    return Label.HIGH if efficiency > HIGH else Label.MEDIUM


def below_peers(values: Mapping[str, float]) -> list[tuple[str, float, float]]:
    """Return (name, value, median of the others) of those clearly below the others."""
    below = []
    for name, value in values.items():
        others = [v for other, v in values.items() if other != name]
        if others and value < IMBALANCE_RATIO * _median(others):
            below.append((name, value, _median(others)))
    return below


def _median(values: Sequence[float]) -> float:
    # The module `statistics` takes 10 ms to import.
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
