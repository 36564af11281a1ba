"""`wattloop sweep list`, `show` and `export`: what sweeps found."""

from typing import Annotated

import typer

from wattloop.cli.options import Config, JsonFile, StorePlace
from wattloop.cli.output import check_target, say, write_json

__all__ = ["Figures", "Scope", "export_command", "list_command", "show_command"]

Which = Annotated[
    str, typer.Argument(metavar="SWEEP", help="Identifier, its beginning or end, name, or 'last'.")
]
Several = Annotated[
    list[str] | None,
    typer.Argument(metavar="SWEEP", help="Identifiers, their beginnings or ends, names, 'last'."),
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
    from wattloop.cli.runs_store import opened_if_any
    from wattloop.report.stored import with_status_now
    from wattloop.store.experiments import list_experiments
    from wattloop.store.trial_records import read_trials

    check_target(json_file, "--json")
    with opened_if_any(store, config) as place:
        stored = [] if place is None else list_experiments(place, "sweep")
        known = [with_status_now(place, e) for e in stored if place is not None]
        rows = [(e, read_trials(place, e.experiment_id)) for e in known if place is not None]
    if json_file is not None:
        write_json({"sweeps": [sweep_view.brief(e, t) for e, t in rows]}, json_file)
    if json_file == "-":
        return
    if rows:
        sweep_view.print_list(rows)
    else:
        say("no sweep yet; try: wattloop sweep --cap 50%:100%:10% -- python train.py")


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
    from wattloop.cli.runs_store import opened
    from wattloop.cli.sweep_export import export
    from wattloop.report.stored import stored_sweep

    check_target(output, "--output")
    with opened(store, config) as place:
        export(stored_sweep(place, which, scope), place, what, output)
