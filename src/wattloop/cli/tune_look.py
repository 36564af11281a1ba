"""`wattloop tune list`, `show`, `best` and `export`: what searches found."""

from typing import TYPE_CHECKING, Annotated

import typer

from wattloop.cli.experiment_list import Listing, list_stored, show_stored, stored
from wattloop.cli.experiment_list import which as which_one
from wattloop.cli.options import Config, JsonFile, StorePlace
from wattloop.cli.output import check_target, write_json, write_text
from wattloop.store.formats.csv_file import csv_text

if TYPE_CHECKING:
    from wattloop.store.database import Store
    from wattloop.store.experiments import Experiment
    from wattloop.tune.results import SearchSummary

__all__ = ["best_command", "export_command", "list_command", "show_command"]

KIND = "search"
Which = Annotated[str, which_one("SEARCH")]


def list_command(
    json_file: JsonFile = None, store: StorePlace = None, config: Config = None
) -> None:
    """Show searches, newest first."""
    from wattloop.cli import tune_view
    from wattloop.report.stored import looked_at
    from wattloop.tune.results import summary_of
    from wattloop.tune.search_store import OVER

    def row(place: "Store", search: "Experiment") -> tuple["Experiment", "SearchSummary"]:
        if search.status in OVER:
            return search, summary_of(place, search)
        return search, looked_at(place, search)[1]  # one that was killed wrote no best down

    searches = Listing(
        kind=KIND,
        plural="searches",
        example="wattloop tune run search.yaml -- python train.py --lr {lr}",
        row=row,
        as_dict=lambda row: row[1].to_dict(),
        print_rows=tune_view.print_list,
    )
    list_stored(searches, json_file, store, config)


def show_command(
    which: Which = "last",
    *,
    figures: Annotated[
        str | None,
        typer.Option("--figures", metavar="DIR", help="Draw how sm2 went into this folder."),
    ] = None,
    json_file: JsonFile = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Show the configurations of a search, the best first."""
    from wattloop.cli import tune_view
    from wattloop.cli.tune_figures import draw, drawable

    check_target(json_file, "--json")
    with stored(KIND, which, store, config) as found:
        if figures is not None:
            drawable(found[1], figures)
        show_stored(found, json_file, tune_view.result_dict, tune_view.print_summary)
        if figures is not None:
            draw(*found, figures)


def best_command(
    which: Which = "last",
    *,
    json_file: JsonFile = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Show the best configuration of a search."""
    from wattloop.cli import tune_view
    from wattloop.report.stored import looked_at

    check_target(json_file, "--json")
    with stored(KIND, which, store, config) as (place, experiment):
        _, summary = looked_at(place, experiment)
        if json_file is not None:
            write_json(tune_view.best_dict(summary), json_file)
        if json_file != "-":
            tune_view.print_best(summary, experiment)


def export_command(
    which: Which = "last",
    *,
    csv_file: Annotated[
        str | None,
        typer.Option("--csv", metavar="FILE", help="A row per configuration; - is the output."),
    ] = None,
    optuna_file: Annotated[
        str | None,
        typer.Option(
            "--optuna", metavar="FILE.db", help="A study that optuna-dashboard opens; or FILE.log."
        ),
    ] = None,
    json_file: JsonFile = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Write every configuration as CSV (unless told otherwise), JSON or a study of Optuna."""
    from wattloop.cli import tune_view
    from wattloop.tune.results import search_table

    if csv_file is None and json_file is None and optuna_file is None:
        csv_file = "-"
    if optuna_file is not None:
        check_target(optuna_file, "--optuna")
    for target, option in ((csv_file, "--csv"), (json_file, "--json")):
        check_target(target, option)
    with stored(KIND, which, store, config) as (place, experiment):
        rows = search_table(place, experiment.experiment_id)
        if json_file is not None:
            write_json(tune_view.result_dict(place, experiment), json_file)
        if csv_file is not None:
            columns = list(rows[0]) if rows else ["candidate"]
            write_text(csv_text(columns, rows), csv_file, "--csv")
        if optuna_file is not None:
            from wattloop.cli.tune_study import write_study

            write_study(place, experiment.experiment_id, optuna_file, config)
