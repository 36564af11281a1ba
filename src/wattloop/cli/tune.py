"""`wattloop tune`: settings that reach the same quality for less energy."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from wattloop.cli.options import Config, Devices, Interval, JsonFile, Meters, StorePlace
from wattloop.cli.output import check_target
from wattloop.cli.tune_final import final_command
from wattloop.cli.tune_look import best_command, export_command, list_command, show_command
from wattloop.cli.tune_replay import REPLAY_FIGURES, replay_command

__all__ = ["app"]

COMMAND = "wattloop.tune.command"
RUN = "run"


class TuneGroup(TyperGroup):
    """What follows `--` is the user's command; `tune SPEC.yaml` is `tune run SPEC.yaml`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the command off, and add `run` where a file is named and no other word."""
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
        bool, typer.Option("--new", help="Begin anew, also where the same search is unfinished.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Only go on with an unfinished search.")
    ] = False,
    json_file: JsonFile = None,
    interval: Interval = None,
    devices: Devices = None,
    meters: Meters = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Search, and say which configuration is best.

    The same specification and command again goes on where it was stopped; what has ended is not
    paid for twice.
    """
    from wattloop.cli.chosen import settings_of
    from wattloop.cli.tune_execute import TuneRequest, execute

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
    """Go on with a search that was stopped or killed, within other limits where some are given."""
    from wattloop.cli.chosen import settings_of
    from wattloop.cli.tune_execute import TuneRequest, execute_stored

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
