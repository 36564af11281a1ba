"""`wattloop cap evaluate`: the finder on a table of measured curves."""

import math

from wattloop.cli.output import print_table, write_json
from wattloop.cli.progress import counted
from wattloop.core.errors import ConfigError
from wattloop.core.units import format_number

__all__ = ["evaluate_table"]


def evaluate_table(
    table: str, metric: str, k: float, noise: float, seeds: int, json_file: str | None
) -> None:
    """Replay, print and write."""
    from wattloop.cap.evaluation import Evaluation, evaluate, read_curves
    from wattloop.cap.finder import CapFinder

    if not (math.isfinite(noise) and 0 <= noise <= 0.3):
        raise ConfigError(f"--noise {100 * noise:g}: give per cent between 0 and 30")
    if seeds < 1:
        raise ConfigError(f"--seeds {seeds}: give at least 1")
    CapFinder([1.0, 2.0], metric, k)  # refuses a wrong metric or k before the table is read
    curves = read_curves(table)
    with counted("searching", len(curves) * (seeds if noise else 1)) as bar:
        found: Evaluation = evaluate(curves, metric, k, noise, seeds=seeds, advance=bar.advance)
    if json_file is not None:
        write_json({"table": table, **found.to_dict()}, json_file)
    if json_file != "-":
        print_table(("", ""), [(name, _shown(v)) for name, v in found.to_dict().items()])


def _shown(value: object) -> str:
    if value is None:
        return "-"
    return format_number(value) if isinstance(value, float) else str(value)
