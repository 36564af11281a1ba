"""The user's own carbon intensities by time, from a CSV file.

Columns `time` and `g_co2e_per_kwh`, and `zone` where the file holds several. A time is ISO 8601
(UTC unless it says otherwise) or seconds since 1970. A value holds until the next one.
"""

import csv
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from wattloop.core.errors import ConfigError

__all__ = ["IntensityPoint", "load_series", "mean_intensity"]

SINGLE_STEP_S = 3_600.0
"""How long the only value of a file holds: grids publish by the hour."""
MAX_G_PER_KWH = 5_000.0


class IntensityPoint(NamedTuple):
    """From `wall_s` on, a kilowatt-hour costs this many grams of CO2e."""

    wall_s: float
    g_co2e_per_kwh: float


def mean_intensity(
    series: Sequence[IntensityPoint], begin_wall_s: float, end_wall_s: float
) -> tuple[float, float] | None:
    """Mean intensity over a run, each interval weighted by the time it shares with the run.

    Returns the mean and the share of the run that the series covers, or None when it covers
    nothing. Power is taken as constant over the run.
    """
    length_s = max(end_wall_s - begin_wall_s, 1e-9)
    end_wall_s = begin_wall_s + length_s
    weighted = covered_s = 0.0
    for point, until_s in zip(series, _ends(series), strict=True):
        shared_s = min(until_s, end_wall_s) - max(point.wall_s, begin_wall_s)
        if shared_s > 0:
            weighted += point.g_co2e_per_kwh * shared_s
            covered_s += shared_s
    if covered_s <= 0:
        return None
    return weighted / covered_s, min(1.0, covered_s / length_s)


def load_series(path: Path, zone: str = "") -> tuple[IntensityPoint, ...]:
    """The points of a file in order of time; those of `zone` where it has a column for it.

    Raises:
        ConfigError: the file cannot be read or a line is wrong; the message names the line.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            return _parsed(csv.DictReader(lines), path, zone)
    except OSError as problem:
        raise ConfigError(
            f"carbon_file {path} cannot be read: {problem.strerror or problem}"
        ) from None
    except (UnicodeDecodeError, csv.Error) as problem:
        raise ConfigError(f"carbon_file {path} is not a CSV text file: {problem}") from None


def _parsed(rows: "csv.DictReader[str]", path: Path, zone: str) -> tuple[IntensityPoint, ...]:
    columns = rows.fieldnames or ()
    if "time" not in columns or "g_co2e_per_kwh" not in columns:
        raise ConfigError(
            f"carbon_file {path} must have the columns time,g_co2e_per_kwh; "
            f"it has {','.join(columns) or 'none'}"
        )
    points: dict[float, IntensityPoint] = {}
    zones: set[str] = set()
    for row in rows:
        if "zone" in columns:
            zones.add(row["zone"] or "")
            if (row["zone"] or "").casefold() != zone.casefold():
                continue
        where = f"carbon_file {path}:{rows.line_num}"
        wall_s = _wall_s(row["time"], where)
        if wall_s in points:
            raise ConfigError(f"{where}: a second value for {row['time']}; remove one")
        points[wall_s] = IntensityPoint(wall_s, _intensity(row["g_co2e_per_kwh"], where))
    if not points:
        hint = f" for zone '{zone}'; it has {', '.join(sorted(zones))}" if zones else ""
        raise ConfigError(f"carbon_file {path} has no values{hint}")
    return tuple(points[wall_s] for wall_s in sorted(points))


def _wall_s(text: str | None, where: str) -> float:
    text = (text or "").strip()
    try:
        seconds = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ConfigError(
                f"{where}: time {text!r} is neither ISO 8601 (2025-01-31T14:00Z) nor seconds"
            ) from None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(seconds):
        raise ConfigError(f"{where}: time {text!r} is not finite")
    return seconds


def _intensity(text: str | None, where: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not 0 <= value <= MAX_G_PER_KWH:
        raise ConfigError(
            f"{where}: g_co2e_per_kwh {text!r} must be a number from 0 to {MAX_G_PER_KWH:g}"
        )
    return value


def _ends(series: Sequence[IntensityPoint]) -> list[float]:
    """When each value stops holding; the last one holds as long as the one before it."""
    starts = [point.wall_s for point in series]
    last_step_s = starts[-1] - starts[-2] if len(starts) > 1 else SINGLE_STEP_S
    return [*starts[1:], starts[-1] + last_step_s]
