"""Energy over runtime, per device, over several runs (document "EnergyScopium", energy-runtime).

Runs of one device lie on a line whose slope, in joules per second, belongs to the device.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from wattloop.core.results import Missing
from wattloop.measure.accounting.line import fit_line

__all__ = ["Slope", "slopes"]


class Slope(NamedTuple):
    """Joules each further second of runtime costs on one device."""

    device: str
    slope_w: float
    intercept_j: float
    r2: float
    runs: int


def slopes(
    runs: Mapping[str, Sequence[tuple[float, float]]],
) -> tuple[tuple[Slope, ...], tuple[Missing, ...]]:
    """A slope for each device from its (runtime in s, energy in J) pairs.

    Devices whose runs make no line (fewer than three, or all equally long) come back as missing,
    and those whose longer runs used less: the same work under several power caps, say.
    """
    found, missing = [], []
    for device, pairs in runs.items():
        try:
            line = fit_line([t for t, _ in pairs], [e for _, e in pairs])
        except ValueError as problem:
            remedy = "measure more runs of other lengths"
            missing.append(Missing(device, f"no slope: {problem}", remedy))
            continue
        if line.slope <= 0:
            reason = "no slope: longer runs used no more, so they are not of one setting"
            missing.append(Missing(device, reason, "look at runs of one setting only"))
            continue
        found.append(Slope(device, line.slope, line.intercept, line.r2, line.points))
    return tuple(found), tuple(missing)
