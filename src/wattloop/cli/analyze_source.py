"""Tables for `wattloop analyze`: from a CSV file, a stored sweep or a stored search."""

from typing import TYPE_CHECKING, Any

from wattloop.analyze.epoch_rows import fold_epochs
from wattloop.analyze.reading import read_csv, table_of
from wattloop.analyze.roles import with_energy
from wattloop.analyze.table import Table
from wattloop.cli.analyze_request import Request, listed
from wattloop.core.errors import ConfigError
from wattloop.core.user_path import user_path

if TYPE_CHECKING:
    from wattloop.characterize.sweep_result import SweepResult
    from wattloop.store.database import Store
    from wattloop.store.experiments import Experiment

__all__ = ["read_source"]

SWEEP, SEARCH = "sweep", "search"


def read_source(request: Request) -> Table:
    """The rows that were asked for."""
    place = user_path(request.source)
    if place.suffix.lower() in (".csv", ".tsv", ".txt") or place.is_file():
        chosen = listed(request.parameters), listed(request.results)
        table = fold_epochs(read_csv(request.source, *chosen))
    else:
        table = _stored(request)
    table = with_energy(table)
    for condition in request.where or ():
        table = table.where(condition)
    return table


def _stored(request: Request) -> Table:
    from wattloop.cli.runs_store import opened_if_any
    from wattloop.store.experiments import find_experiment

    with opened_if_any(request.store, request.config) as store:
        if store is None:
            raise ConfigError(
                f"{request.source}: no such file, and nothing is stored yet; "
                "name a CSV file, or run 'wattloop tune' or 'wattloop sweep' first"
            )
        experiment = find_experiment(store, request.source, SEARCH, SWEEP)
        if experiment.kind == SEARCH:
            from wattloop.cli.analyze_search import search_rows_table

            return search_rows_table(store, experiment, request)
        return _sweep(store, experiment, request)


def _sweep(store: "Store", experiment: "Experiment", request: Request) -> Table:
    """One row per trial; warm-ups and outliers are left out, and counted."""
    from wattloop.cli.sweep_view import stored_result

    result = stored_result(store, experiment.experiment_id, request.scope)
    if result.scope is None:
        raise ConfigError(f"{experiment.experiment_id}: no energy was measured")
    rows, parameters = _sweep_rows(result)
    found = listed(request.parameters), listed(request.results)
    table = table_of(
        rows,
        name=experiment.name or experiment.experiment_id,
        parameters=found[0] or parameters,
        results=found[1] or ["time_s", "energy_j", "power_w", "peak_w"],
        source=f"energy of {result.scope}, {result.provenance}",
    )
    outliers = [value is True for value in table.column("outlier")]
    return table.keep([not out for out in outliers], "outlier")


def _sweep_rows(result: "SweepResult") -> tuple[list[dict[str, Any]], list[str]]:
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
