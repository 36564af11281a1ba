"""Cap curves as files: ours, and the power traces of the Zeus library."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from wattloop.core.errors import ConfigError
from wattloop.core.user_code import user_path
from wattloop.schedule.oracle.cap_curves import CapCurves, CapPoint
from wattloop.schedule.oracle.csv_rows import CsvFile, read_rows

__all__ = ["OURS", "curve_files", "load_cap_curves"]

OURS = ("model", "gpu", "batch", "cap_w", "time_s", "power_w")
ZEUS = ("network", "batch_size", "power_limit", "time_per_epoch", "average_power")
ZEUS_NAME = re.compile(r"power_(\w+)\.csv")


def load_cap_curves(names: Sequence[str], nearest: Mapping[str, str] | None = None) -> CapCurves:
    """Curves of files, or of folders with files called `power_GPU.csv` (docs/oracles.md).

    Raises:
        ConfigError: a file cannot be read, is of no known kind, or a field is wrong; the message
            names file, line and column.
    """
    points: list[CapPoint] = []
    for path in curve_files(names):
        file = read_rows(path)
        points += _zeus(file) if file.has(ZEUS) else _ours(file)
    return CapCurves(points, ", ".join(names), nearest)


def curve_files(names: Sequence[str]) -> list[str]:
    """The files themselves, where folders are named.

    Raises:
        ConfigError: there is no such file in a folder.
    """
    found: list[str] = []
    for name in names:
        folder = user_path(name)
        if not folder.is_dir():
            found.append(name)
            continue
        inside = sorted(str(each) for each in folder.iterdir() if ZEUS_NAME.fullmatch(each.name))
        if not inside:
            raise ConfigError(f"{name}: no file in it is called power_GPU.csv")
        found += inside
    return found


def _zeus(file: CsvFile) -> list[CapPoint]:
    named = ZEUS_NAME.fullmatch(Path(file.path).name)
    if named is None:
        raise ConfigError(
            f"{file.path}: the GPU of a Zeus trace is in its name; call it power_v100.csv"
        )
    return [
        CapPoint(
            row.text("network"),
            named[1].lower(),
            row.number("batch_size", least=1.0),
            row.number("power_limit", least=1.0),
            row.number("time_per_epoch", least=1e-9),
            row.number("average_power", least=1e-9),
        )
        for row in file
    ]


def _ours(file: CsvFile) -> list[CapPoint]:
    missing = [column for column in OURS if column not in file.columns]
    if missing:
        raise ConfigError(
            f"{file.path}:1: cap curves need the columns {', '.join(OURS)}; {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing (docs/oracles.md)"
        )
    return [
        CapPoint(
            row.text("model"),
            row.text("gpu").lower(),
            row.number("batch", least=1e-9),
            row.number("cap_w", least=1.0),
            row.number("time_s", least=1e-12),
            row.number("power_w", least=1e-9),
        )
        for row in file
    ]
