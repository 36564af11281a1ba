"""Commands of `wattloop tune`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from wattloop.cli.commands.tune.final import final_command
from wattloop.cli.commands.tune.replay import REPLAY_FIGURES, replay_command
from wattloop.cli.experiments import Listing, list_stored, show_stored, stored
from wattloop.cli.experiments import which as which_one
from wattloop.cli.options import Config, Devices, Interval, JsonFile, Meters, StorePlace
from wattloop.cli.output import check_target, write_json, write_text
from wattloop.store.formats.csv_file import csv_text

if TYPE_CHECKING:
    from wattloop.store.database import Store
    from wattloop.store.experiments import Experiment
    from wattloop.tune.results import SearchSummary


KIND = "search"


Which = Annotated[str, which_one("SEARCH")]


def list_command(
    json_file: JsonFile = None, store: StorePlace = None, config: Config = None
) -> None:
    """Show searches, newest first."""
    from wattloop.cli.commands.tune import view
    from wattloop.report.stored_results import looked_at
    from wattloop.tune.results import summarize_search
    from wattloop.tune.search_store import OVER

    def row(place: "Store", search: "Experiment") -> tuple["Experiment", "SearchSummary"]:
        if search.status in OVER:
            return search, summarize_search(place, search)
        return search, looked_at(place, search)[1]  # one that was killed wrote no best down

    searches = Listing(
        kind=KIND,
        plural="searches",
        example="wattloop tune run search.yaml -- python train.py --lr {lr}",
        row=row,
        as_dict=lambda row: row[1].to_dict(),
        print_rows=view.print_list,
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
    from wattloop.cli.commands.tune import view
    from wattloop.cli.commands.tune.view import draw, drawable

    check_target(json_file, "--json")
    with stored(KIND, which, store, config) as found:
        if figures is not None:
            drawable(found[1], figures)
        show_stored(found, json_file, view.result_dict, view.print_summary)
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
    from wattloop.cli.commands.tune import view
    from wattloop.report.stored_results import looked_at

    check_target(json_file, "--json")
    with stored(KIND, which, store, config) as (place, experiment):
        _, summary = looked_at(place, experiment)
        if json_file is not None:
            write_json(view.best_dict(summary), json_file)
        if json_file != "-":
            view.print_best(summary, experiment)


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
    """Write every configuration as CSV (default), JSON or an Optuna study."""
    from wattloop.cli.commands.tune import view
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
            write_json(view.result_dict(place, experiment), json_file)
        if csv_file is not None:
            columns = list(rows[0]) if rows else ["candidate"]
            write_text(csv_text(columns, rows), csv_file, "--csv")
        if optuna_file is not None:
            from wattloop.cli.commands.tune.view import write_study

            write_study(place, experiment.experiment_id, optuna_file, config)


COMMAND = "wattloop.tune.command"


RUN = "run"


class TuneGroup(TyperGroup):
    """Command group in which `tune SPEC.yaml` means `tune run SPEC.yaml`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Split the user's command off; insert `run` before a file without a command."""
        if "--" in args:
            end = args.index("--")
            args, ctx.meta[COMMAND] = args[:end], args[end + 1 :]
        if args and args[0].endswith((".yaml", ".yml")):
            args = [RUN, *args]
        return list(super().parse_args(ctx, args))


app = typer.Typer(
    cls=TuneGroup,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Search hyper-parameters and power cap together, with energy in the objective.",
    epilog="Examples: wattloop tune run search.yaml -- python train.py --lr {lr}; "
    "wattloop tune best; wattloop tune final.",
)


Energy = Annotated[
    str | None, typer.Option("--energy", metavar="AMOUNT", help="Budget, such as 2kWh.")
]


Time = Annotated[
    str | None, typer.Option("--time", metavar="TIME", help="Deadline, such as 90min or 8h.")
]


Trials = Annotated[int | None, typer.Option("--trials", help="Configurations to begin at most.")]


@app.command(RUN)
def run_command(  # noqa: PLR0913 - one parameter per option
    ctx: typer.Context,
    spec: Annotated[str, typer.Argument(metavar="SPEC.yaml", help="Parameters, metric, limits.")],
    *,
    strategy: Annotated[
        str | None,
        typer.Option("--strategy", help="race, sm2, grid, random, tpe, gp, asha ..."),
    ] = None,
    target: Annotated[
        float | None, typer.Option("--target", help="Quality that is good enough.")
    ] = None,
    energy: Energy = None,
    time: Time = None,
    trials: Trials = None,
    epochs: Annotated[
        float | None, typer.Option("--epochs", help="Epochs of one training at most.")
    ] = None,
    scope: Annotated[
        str | None, typer.Option("--scope", help="Energy of gpu, cpu, dram or node.")
    ] = None,
    parallel: Annotated[
        str | None,
        typer.Option(
            "--parallel",
            metavar="GPUS",
            help="Train side by side: 2, groups such as 0,1;2,3, or ray[:SLOTSxGPUS].",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Of everything random.")] = None,
    name: Annotated[str | None, typer.Option("--name", "-n", help="What it is called.")] = None,
    new: Annotated[
        bool, typer.Option("--new", help="Start a new search, even if the same one is unfinished.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Only resume an unfinished search.")
    ] = False,
    json_file: JsonFile = None,
    interval: Interval = None,
    devices: Devices = None,
    meters: Meters = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Search, and show the best configuration.

    The same specification and command resumes a stopped search; finished trials are not repeated.
    """
    from wattloop.cli.commands.tune.execution import TuneRequest, execute
    from wattloop.cli.settings import settings_of

    check_target(json_file, "--json")
    request = TuneRequest(
        settings=settings_of(
            config, interval=interval, devices=devices, meters=meters, store=store
        ),
        spec_file=spec,
        command=ctx.meta.get(COMMAND, []),
        fields={"name": name, "seed": seed, "scope": scope, "strategy": strategy},
        target=target,
        limits={"energy": energy, "time": time, "trials": trials, "epochs": epochs},
        parallel=parallel,
        new=new,
        resume_only=resume,
        json_file=json_file,
    )
    execute(request)


@app.command("resume")
def resume_command(  # noqa: PLR0913 - one parameter per option
    which: Annotated[
        str | None,
        typer.Argument(metavar="[SEARCH]", help="Unless given, the last one that is unfinished."),
    ] = None,
    *,
    energy: Energy = None,
    time: Time = None,
    trials: Trials = None,
    json_file: JsonFile = None,
    interval: Interval = None,
    devices: Devices = None,
    meters: Meters = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Resume a stopped or killed search, optionally with other limits."""
    from wattloop.cli.commands.tune.execution import TuneRequest, execute_stored
    from wattloop.cli.settings import settings_of

    check_target(json_file, "--json")
    settings = settings_of(config, interval=interval, devices=devices, meters=meters, store=store)
    limits = {"energy": energy, "time": time, "trials": trials}
    execute_stored(which, TuneRequest(settings=settings, limits=limits, json_file=json_file))


for word, command in (
    ("list", list_command),
    ("show", show_command),
    ("best", best_command),
    ("export", export_command),
    ("final", final_command),
):
    app.command(word)(command)


app.command("replay", epilog=REPLAY_FIGURES)(replay_command)
