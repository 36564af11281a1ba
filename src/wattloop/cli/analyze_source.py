"""Tables for `wattloop analyze`: from a CSV file, a stored sweep or a stored search."""

from wattloop.analyze.roles import with_energy
from wattloop.analyze.table import RunTable
from wattloop.analyze.table_reader import fold_epochs, read_csv
from wattloop.cli.analyze_request import Request, listed
from wattloop.cli.experiment_list import say_which
from wattloop.core.errors import ConfigError
from wattloop.core.user_code import user_path

__all__ = ["read_source"]

SWEEP, SEARCH = "sweep", "search"


def read_source(request: Request) -> RunTable:
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


def _stored(request: Request) -> RunTable:
    from wattloop.cli.runs_store import opened_if_any
    from wattloop.store.experiments import find_experiment

    with opened_if_any(request.store, request.config) as store:
        if store is None:
            raise ConfigError(
                f"{request.source}: no such file, and nothing is stored yet; "
                "name a CSV file, or run 'wattloop tune' or 'wattloop sweep' first"
            )
        experiment = find_experiment(store, request.source, SEARCH, SWEEP)
        say_which(store, request.source, SEARCH, SWEEP)
        chosen = listed(request.parameters), listed(request.results)
        if experiment.kind == SEARCH:
            from wattloop.report.tables.of_search import search_table

            return search_table(store, experiment, *chosen)
        from wattloop.report.stored import stored_sweep
        from wattloop.report.tables.of_sweep import sweep_table

        return sweep_table(stored_sweep(store, experiment.experiment_id, request.scope), *chosen)
