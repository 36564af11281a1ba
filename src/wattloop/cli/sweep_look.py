"""`wattloop sweep list`, `show` and `export`: what sweeps found."""

from typing import Annotated

import typer

from wattloop.cli.experiment_list import NAMED, Listing, list_stored, say_which, stored
from wattloop.cli.experiment_list import which as which_one
from wattloop.cli.options import Config, JsonFile, StorePlace
from wattloop.cli.output import check_target, write_json

__all__ = ["Figures", "Scope", "export_command", "list_command", "show_command"]

KIND = "sweep"
Which = Annotated[str, which_one("SWEEP")]
Several = Annotated[
    list[str] | None,
    typer.Argument(metavar="[SWEEP]...", help=f"Each by {NAMED}."),
]
Figures = Annotated[
    str | None, typer.Option("--figures", metavar="DIR", help="Draw figures into this folder.")
]
Scope = Annotated[str | None, typer.Option("--scope", help="Energy of gpu, cpu, dram or node.")]


def list_command(
    json_file: JsonFile = None, store: StorePlace = None, config: Config = None
) -> None:
    """Show sweeps, newest first."""
    from wattloop.cli import sweep_view
    from wattloop.store.experiments import read_trials

    sweeps = Listing(
        kind=KIND,
        plural="sweeps",
        example="wattloop sweep --cap 50%:100%:10% -- python train.py",
        row=lambda place, experiment: (experiment, read_trials(place, experiment.experiment_id)),
        as_dict=lambda row: sweep_view.brief(*row),
        print_rows=sweep_view.print_list,
    )
    list_stored(sweeps, json_file, store, config)


def show_command(
    which: Several = None,
    *,
    scope: Scope = None,
    tables: Annotated[
        str,
        typer.Option(
            "--tables",
            metavar="LIST",
            help="Of points, best, techniques, powers, scaling, synthesis; or all.",
        ),
    ] = "points,best",
    figures: Figures = None,
    json_file: JsonFile = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Show points with means and intervals, the best per metric, and other tables.

    Several sweeps make one table, by workload and library.
    """
    from wattloop.cli import sweep_view
    from wattloop.cli.runs_store import opened
    from wattloop.report.stored import stored_sweep

    check_target(json_file, "--json")
    wanted = sweep_view.tables_from(tables)
    with opened(store, config) as place:
        for name in which or ():
            say_which(place, name, KIND)
        results = [stored_sweep(place, name, scope) for name in which or ["last"]]
        if json_file is not None:
            data = [sweep_view.as_dict(result) for result in results]
            write_json(data[0] if len(data) == 1 else data, json_file)
        if json_file != "-":
            sweep_view.print_results(results, wanted)
        if figures is not None:
            from wattloop.cli.sweep_figures import draw

            draw(results, place, figures)


def export_command(
    which: Which = "last",
    *,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help=".csv or .json; - is CSV.")
    ] = "-",
    what: Annotated[
        str, typer.Option("--what", help="trials (one row each) or points (means).")
    ] = "trials",
    scope: Scope = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Write every trial, or the means, as CSV or JSON."""
    from wattloop.cli.sweep_export import export
    from wattloop.report.stored import stored_sweep

    check_target(output, "--output")
    with stored(KIND, which, store, config) as (place, experiment):
        export(stored_sweep(place, experiment.experiment_id, scope), place, what, output)
