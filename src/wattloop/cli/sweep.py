"""`wattloop sweep`: which setting of caps, clocks and GPU counts saves what."""

from typing import Annotated, Any

import typer

from wattloop.cli.options import Config, Devices, Interval, JsonFile, Meters, StorePlace
from wattloop.cli.output import check_target
from wattloop.cli.sweep_look import (
    Figures,
    Scope,
    export_command,
    list_command,
    show_command,
)
from wattloop.cli.usual_command import RUN, UsualCommandGroup

__all__ = ["app"]

COMMAND = "wattloop.sweep.command"


class SweepGroup(UsualCommandGroup):
    """`sweep SPEC -- CMD` is `sweep run SPEC -- CMD`; what follows `--` is the user's command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the command off; where nothing is left, `run` is meant."""
        if "--" in args:
            end = args.index("--")
            args, ctx.meta[COMMAND] = args[:end], args[end + 1 :]
            args = args or [RUN]
        return list(super().parse_args(ctx, args))


app = typer.Typer(
    cls=SweepGroup,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Try power caps, clocks, governors and GPU counts on a command; find the best.",
    epilog="Examples: wattloop sweep caps.yaml -- python train.py; "
    "wattloop sweep --cap 100:260:10 --gpus 1,2,4,8 -- python train.py --gpus {gpus}.",
)

ShowOutput = Annotated[
    bool, typer.Option("--show-output", help="Show what the command prints instead of keeping it.")
]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Run again what failed before.")]


@app.command(RUN)
def run_command(  # noqa: PLR0913 - one parameter per option
    ctx: typer.Context,
    spec: Annotated[
        str | None, typer.Argument(metavar="[SPEC.yaml]", help="What to vary, and how.")
    ] = None,
    *,
    cap: Annotated[
        str | None,
        typer.Option(
            "--cap", metavar="VALUES", help="GPU power caps: 100:260:10, 150,200 or 50%:100%:10%."
        ),
    ] = None,
    clock: Annotated[
        str | None, typer.Option("--clock", metavar="VALUES", help="GPU clocks in MHz.")
    ] = None,
    lever: Annotated[
        list[str] | None,
        typer.Option(
            "--lever", metavar="NAME=VALUES", help="Any lever, such as cpu/governor=powersave."
        ),
    ] = None,
    gpus: Annotated[
        str | None, typer.Option("--gpus", metavar="LIST", help="Numbers of GPUs, such as 1,2,4,8.")
    ] = None,
    kernel: Annotated[
        list[str] | None,
        typer.Option("--kernel", metavar="NAME[/BACKEND]", help="Sweep a kernel of 'bench'."),
    ] = None,
    repeats: Annotated[
        str | None,
        typer.Option("--repeats", metavar="N or MIN:MAX", help="Runs of each point (default: 3)."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="PCT", help="Stop repeating at this half-width, in %."),
    ] = None,
    combine: Annotated[
        str | None, typer.Option("--combine", help="grid of all levers, or each on its own.")
    ] = None,
    warmup: Annotated[int | None, typer.Option("--warmup", help="Runs before the first.")] = None,
    cooldown: Annotated[
        float | None,
        typer.Option("--cooldown", metavar="DEGREES", help="Wait until this near to idle warmth."),
    ] = None,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="TIME", help="End a run after 90 or 10min.")
    ] = None,
    order: Annotated[str | None, typer.Option("--order", help="random or listed.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Of the random order.")] = None,
    window: Annotated[
        str | None,
        typer.Option(
            "--window", metavar="NAME", help="Count only wattloop.measure(NAME) in the command."
        ),
    ] = None,
    scope: Scope = None,
    metric: Annotated[str | None, typer.Option("--metric", help="What to be best at.")] = None,
    k: Annotated[float | None, typer.Option("--k", help="For the metric eds.")] = None,
    name: Annotated[str | None, typer.Option("--name", "-n", help="What it is called.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List every point and every write; run nothing.")
    ] = False,
    new: Annotated[
        bool, typer.Option("--new", help="Begin anew, also where the same sweep is unfinished.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Only go on with an unfinished sweep.")
    ] = False,
    retry_failed: RetryFailed = False,
    show_output: ShowOutput = False,
    figures: Figures = None,
    json_file: JsonFile = None,
    interval: Interval = None,
    devices: Devices = None,
    meters: Meters = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Run a command at every setting, measured, and say which is best.

    The same specification and command again goes on where it was stopped.
    """
    from wattloop.cli.chosen import settings_of
    from wattloop.cli.sweep_execute import execute
    from wattloop.cli.sweep_request import SweepRequest

    check_target(json_file, "--json")
    settings = settings_of(config, interval=interval, devices=devices, meters=meters, store=store)
    request = SweepRequest(
        spec_file=spec,
        command=ctx.meta.get(COMMAND, []),
        levers={"--cap": cap, "--clock": clock},
        named_levers=lever or [],
        kernels=kernel or [],
        gpus=gpus,
        repeats=repeats,
        target=target,
        cooldown_c=cooldown,
        fields={
            "combine": combine,
            "warmup": warmup,
            "timeout": timeout,
            "order": order,
            "seed": seed,
            "window": window,
            "scope": scope,
            "metric": metric,
            "k": k,
            "name": name,
        },
        settings=settings,
        dry_run=dry_run,
        new=new,
        resume_only=resume,
        retry_failed=retry_failed,
        show_output=show_output,
        figures=figures,
        json_file=json_file,
    )
    execute(request)


@app.command("resume")
def resume_command(
    which: Annotated[
        str | None,
        typer.Argument(metavar="[SWEEP]", help="Unless given, the last one that is unfinished."),
    ] = None,
    *,
    retry_failed: RetryFailed = False,
    show_output: ShowOutput = False,
    figures: Figures = None,
    json_file: JsonFile = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Go on with a sweep that was stopped."""
    from wattloop.cli.chosen import settings_of
    from wattloop.cli.sweep_execute import execute_stored
    from wattloop.cli.sweep_request import SweepRequest

    check_target(json_file, "--json")
    request = SweepRequest(
        settings=settings_of(config, store=store),
        retry_failed=retry_failed,
        show_output=show_output,
        figures=figures,
        json_file=json_file,
    )
    execute_stored(which, request)


for name, looking in (("list", list_command), ("show", show_command), ("export", export_command)):
    app.command(name)(looking)
