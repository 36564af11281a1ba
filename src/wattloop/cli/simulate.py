"""`wattloop simulate`: policies on a GPU cluster, before anybody's job waits for them."""

from typing import Annotated

import typer

from wattloop.cli.options import Config, JsonFile, StorePlace
from wattloop.cli.output import check_target
from wattloop.cli.simulate_lists import init_command, policies_command, scenarios_command
from wattloop.cli.simulate_look import export_command, list_command, show_command
from wattloop.cli.simulate_options import (
    Budget,
    CapCurves,
    Horizon,
    New,
    Seeds,
    Set,
    Throughputs,
    Trace,
    Variant,
    Workers,
)
from wattloop.cli.simulate_whatif import whatif_command
from wattloop.cli.usual_command import RUN, UsualCommandGroup

__all__ = ["app"]

app = typer.Typer(
    cls=UsualCommandGroup,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Compare scheduling policies on a simulated GPU cluster: energy, waiting, deadlines.",
    epilog="Examples: wattloop simulate thesis-pareto --policies fifo,pollux,zeus --seeds 10; "
    "wattloop simulate whatif thesis-pareto --replace a100=h100.",
)


@app.command(RUN)
def run_command(  # noqa: PLR0913 - one parameter per option
    scenario: Annotated[
        str,
        typer.Argument(metavar="SCENARIO", help="YAML file, or a shipped one by its name."),
    ],
    *,
    policies: Annotated[
        str | None,
        typer.Option(
            "--policies",
            "-p",
            metavar="LIST",
            help="Such as fifo,pollux,zeus{age_weight_per_s: 0.01}; 'all' is every one "
            "(default: the scenario's).",
        ),
    ] = None,
    max_delay: Annotated[
        str | None,
        typer.Option(
            "--max-delay",
            metavar="SHARE",
            help="How much longer than at full power jobs may take under helios, such as 10%.",
        ),
    ] = None,
    seeds: Seeds = None,
    workers: Workers = None,
    variant: Variant = None,
    trace: Trace = None,
    budget: Budget = None,
    horizon: Horizon = None,
    throughputs: Throughputs = None,
    cap_curves: CapCurves = None,
    changes: Set = None,
    check: Annotated[
        bool, typer.Option("--check", help="Look after every event that all invariants hold.")
    ] = False,
    plot: Annotated[
        str | None,
        typer.Option("--plot", metavar="FOLDER", help="Draw what came of it (SVG, PNG, HTML)."),
    ] = None,
    new: New = False,
    json_file: JsonFile = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Simulate policies on the same seeds, and say how they differ.

    Every simulation is kept as it ends: the same again goes on where it was stopped, and what is
    known is not computed twice.
    """
    from wattloop.cli.chosen import settings_of
    from wattloop.cli.simulate_execute import execute
    from wattloop.cli.simulate_request import SimulateRequest
    from wattloop.core.settings import STORE

    check_target(json_file, "--json")
    execute(
        SimulateRequest(
            scenario=scenario,
            settings=settings_of(config, needs=STORE, store=store),
            policies=policies,
            max_delay=max_delay,
            seeds=seeds,
            workers=workers,
            variant=variant,
            trace=trace,
            budget=budget,
            horizon=horizon,
            throughputs=throughputs or [],
            cap_curves=cap_curves or [],
            changes=changes or [],
            check=check,
            plot=plot,
            new=new,
            json_file=json_file,
        )
    )


for word, command in (
    ("whatif", whatif_command),
    ("list", list_command),
    ("show", show_command),
    ("export", export_command),
    ("scenarios", scenarios_command),
    ("policies", policies_command),
    ("init", init_command),
):
    app.command(word)(command)
