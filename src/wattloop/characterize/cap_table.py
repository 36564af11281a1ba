"""Measured curves from a table: time and average power of workloads under each power limit.

Columns: dataset, network, batch_size, optimizer, power_limit (W), time_per_epoch (s),
average_power (W); others are left alone. A curve is one (dataset, network, batch_size, optimizer).
"""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wattloop.core.errors import ConfigError
from wattloop.core.user_path import user_path

__all__ = ["COLUMNS", "MeasuredCurve", "read_curves"]

KEYS = ("dataset", "network", "batch_size", "optimizer")
NUMBERS = ("power_limit", "time_per_epoch", "average_power")
COLUMNS = KEYS + NUMBERS
RESPONSIVE = 1.1


@dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """One workload at every cap, from the lowest to the highest."""

    key: tuple[str, ...]
    caps_w: tuple[float, ...]
    time_s: tuple[float, ...]
    power_w: tuple[float, ...]

    @property
    def responsive(self) -> bool:
        """Whether power at the highest cap is more than 1.1 times that at the lowest."""
        return self.power_w[-1] > RESPONSIVE * self.power_w[0]


def read_curves(table: str | Path, fewest_caps: int = 2) -> list[MeasuredCurve]:
    """Curves of a CSV file; rows of the same workload and cap are averaged.

    Raises:
        ConfigError: no such file, a column or a number is missing, or a workload has too few
            caps.
    """
    path = user_path(str(table))
    rows: dict[tuple[str, ...], dict[float, list[tuple[float, float]]]] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            _check_columns(path, reader.fieldnames or ())
            for row in reader:
                key = tuple((row[name] or "").strip() for name in KEYS)
                cap_w, time_s, power_w = (
                    _number(path, reader.line_num, n, row[n]) for n in NUMBERS
                )
                rows.setdefault(key, {}).setdefault(cap_w, []).append((time_s, power_w))
    except FileNotFoundError:
        raise ConfigError(f"{table}: no such file; give a CSV with {', '.join(COLUMNS)}") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{table} cannot be read as CSV: {error}") from None
    if not rows:
        raise ConfigError(f"{path}: no rows below the header")
    for key, caps in rows.items():
        if len(caps) < fewest_caps:
            raise ConfigError(
                f"{path}: {' '.join(key)} has one power limit only; there must be two"
            )
    return [_curve(key, caps) for key, caps in rows.items()]


def _check_columns(path: Path, found: Sequence[str]) -> None:
    missing = [name for name in COLUMNS if name not in found]
    if missing:
        raise ConfigError(
            f"{path}: column {', '.join(missing)} missing; there are {', '.join(found) or 'none'}. "
            f"Needed are {', '.join(COLUMNS)}"
        )


def _number(path: Path, line: int, name: str, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{path}, line {line}: {name} is '{text}'; write a number above 0")
    return value


def _curve(key: tuple[str, ...], caps: dict[float, list[tuple[float, float]]]) -> MeasuredCurve:
    ordered = sorted(caps)
    means = [tuple(sum(v) / len(v) for v in zip(*caps[cap], strict=True)) for cap in ordered]
    return MeasuredCurve(
        key, tuple(ordered), tuple(m[0] for m in means), tuple(m[1] for m in means)
    )
