"""Energy against duration of jobs: a line for each kind of device."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from wattloop.accounting.energy_slope import slopes

__all__ = ["DeviceSlope", "NoSlope", "SlopesAnswer", "slopes_of"]


class DeviceSlope(BaseModel):
    """Joules that each further second costs on a kind of device."""

    device: str
    slope_w: float
    intercept_j: float
    r2: float
    runs: int


class NoSlope(BaseModel):
    """A kind of device whose jobs lie on no line, and why."""

    device: str
    reason: str


class SlopesAnswer(BaseModel):
    """Energy against duration, per device, of matching jobs; points for a chart."""

    slopes: list[DeviceSlope]
    missing: list[NoSlope]
    points: list[tuple[str, float, float]]


def slopes_of(rows: Iterable[Mapping[str, Any]]) -> SlopesAnswer:
    """Lines through rows of the list of jobs, as far as they count in totals."""
    points = [
        (str(row["device"] or "unknown device"), float(row["duration_s"]), float(row["energy_j"]))
        for row in rows
        if row["energy_j"] is not None and row["duration_s"] is not None and row["in_totals"]
    ]
    pairs: dict[str, list[tuple[float, float]]] = {}
    for device, duration_s, energy_j in points:
        pairs.setdefault(device, []).append((duration_s, energy_j))
    lines, missing = slopes(pairs)
    return SlopesAnswer(
        slopes=[DeviceSlope(**line._asdict()) for line in lines],
        missing=[NoSlope(device=each.name, reason=each.reason) for each in missing],
        points=points,
    )
