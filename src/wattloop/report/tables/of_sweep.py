"""A stored sweep as a table: one row per trial."""

from collections.abc import Sequence
from typing import Any

from wattloop.analyze.table import RunTable
from wattloop.analyze.table_reader import table_of
from wattloop.core.errors import ConfigError
from wattloop.sweep.result import SweepResult

__all__ = ["sweep_table"]


def sweep_table(
    result: SweepResult,
    parameters: Sequence[str] | None = None,
    results: Sequence[str] | None = None,
) -> RunTable:
    """Levers against time, energy and power; warm-ups and outliers are left out, and counted.

    Raises:
        ConfigError: no energy was measured.
    """
    experiment = result.experiment
    if result.scope is None:
        raise ConfigError(f"{experiment.experiment_id}: no energy was measured")
    rows, found = _rows(result)
    table = table_of(
        rows,
        name=experiment.name or experiment.experiment_id,
        parameters=list(parameters or found),
        results=list(results or ["time_s", "energy_j", "power_w", "peak_w"]),
        source=f"energy of {result.scope}, {result.provenance}",
    )
    outliers = [value is True for value in table.column("outlier")]
    return table.keep([not out for out in outliers], "outlier")


def _rows(result: SweepResult) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows and the columns in them that were chosen; levers are numbers where they all are."""
    axes = {
        axis["name"]: f"{axis['name']}_{axis['unit'].lower()}"
        if axis["unit"] not in ("", "name")
        and all(level["number"] is not None for level in axis["levels"])
        else axis["name"]
        for axis in result.axes
    }
    rows = []
    for point in result.points:
        facts = point.facts
        setting: dict[str, Any] = {k: facts[k] for k in ("workload", "library", "gpus")}
        for name, column in axes.items():
            numeric = column != name
            setting[column] = result.number(point, name) if numeric else facts["levels"].get(name)
        repeats = zip(point.keys, point.repeated.outcomes, point.repeated.outlying, strict=True)
        for key, outcome, outlier in repeats:
            scope = outcome.scopes.get(result.scope or "")
            rows.append(
                {
                    "key": key,
                    "status": outcome.status.value,
                    "is_default": point.is_default,
                    "outlier": outlier,
                    **setting,
                    "time_s": outcome.time_s,
                    "energy_j": None if scope is None else scope.energy_j,
                    "power_w": None if scope is None else scope.average_w,
                    "peak_w": None if scope is None else scope.peak_w,
                }
            )
    named = ("workload", "library", "gpus")
    varied = [c for c in named if len({row[c] for row in rows}) > 1]
    return rows, [*varied, *axes.values()]
