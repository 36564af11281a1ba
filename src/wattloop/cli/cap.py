"""`wattloop cap`: the best power cap of a command, and how well it is found."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from wattloop.cli.options import Config, Devices, Interval, JsonFile, Meters, StorePlace
from wattloop.cli.output import check_target

__all__ = ["app"]

COMMAND = "wattloop.cap.command"


class CapGroup(TyperGroup):
    """What follows `--` is the user's command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the command off."""
        if "--" in args:
            end = args.index("--")
            args, ctx.meta[COMMAND] = args[:end], args[end + 1 :]
        return list(super().parse_args(ctx, args))


app = typer.Typer(
    cls=CapGroup,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Find the best GPU power cap with few probes.",
    epilog="Examples: wattloop cap find -- python train.py --epochs 1; "
    "wattloop cap find --progress 'step (\\d+)' --apply -- python train.py.",
)

Metric = Annotated[str, typer.Option("--metric", help="energy, edp, ed2p, eds or gain_minus_loss.")]
K = Annotated[float, typer.Option("--k", help="For eds: accept k times the time for no energy.")]


@app.command("find")
def find_command(  # noqa: PLR0913 - one parameter per option
    ctx: typer.Context,
    *,
    metric: Metric = "eds",
    k: K = 2.0,
    gpus: Annotated[
        str | None,
        typer.Option(
            "--gpus", metavar="LIST", help="The job's (default: CUDA_VISIBLE_DEVICES or all)."
        ),
    ] = None,
    caps: Annotated[
        str | None,
        typer.Option("--caps", metavar="VALUES", help="100:250:25 or 150,200; W or % of TDP."),
    ] = None,
    probes: Annotated[
        int | None,
        typer.Option(
            "--probes", help="Never more (default: 4; one per cap if readings are noisy)."
        ),
    ] = None,
    noise: Annotated[
        float, typer.Option("--noise", metavar="PCT", help="How much two equal runs differ, in %.")
    ] = 1.0,
    progress: Annotated[
        str | None,
        typer.Option(
            "--progress",
            metavar="REGEX",
            help="One run only: lines that match are progress; a group that is a number counts it.",
        ),
    ] = None,
    precision: Annotated[
        float, typer.Option("--precision", metavar="PCT", help="With --progress: of each probe.")
    ] = 1.0,
    most_s: Annotated[
        float, typer.Option("--probe-seconds", help="With --progress: the longest a probe lasts.")
    ] = 60.0,
    apply: Annotated[
        bool, typer.Option("--apply", help="With --progress: keep the cap for the rest of the run.")
    ] = False,
    timeout: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", help="End a run after this.")
    ] = None,
    window: Annotated[
        str,
        typer.Option(
            "--window", metavar="NAME", help="Count only wattloop.measure(NAME) in the command."
        ),
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show caps and writes; run nothing.")
    ] = False,
    new: Annotated[
        bool, typer.Option("--new", help="Begin anew, also where the same search is unfinished.")
    ] = False,
    show_output: Annotated[
        bool, typer.Option("--show-output", help="Show what the command prints.")
    ] = False,
    json_file: JsonFile = None,
    interval: Interval = None,
    devices: Devices = None,
    meters: Meters = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Find the power cap that is best for a command. Caps are put back at the end, always.

    The command is run once per probe; with --progress once in all.
    """
    from wattloop.cli.cap_find import FindRequest, find
    from wattloop.cli.chosen import settings_of

    check_target(json_file, "--json")
    request = FindRequest(
        command=ctx.meta.get(COMMAND, []),
        metric=metric,
        k=k,
        gpus=gpus,
        caps=caps,
        most_probes=probes,
        noise=noise / 100,
        progress=progress,
        precision=precision / 100,
        most_s=most_s,
        apply=apply,
        timeout_s=timeout,
        window=window,
        dry_run=dry_run,
        new=new,
        show_output=show_output,
        json_file=json_file,
        settings=settings_of(
            config, interval=interval, devices=devices, meters=meters, store=store
        ),
    )
    find(request)


@app.command("evaluate")
def evaluate_command(
    *,
    table: Annotated[
        str,
        typer.Option("--table", metavar="FILE", help="CSV of measured curves; see docs/cap.md."),
    ],
    metric: Metric = "eds",
    k: K = 2.0,
    noise: Annotated[
        float, typer.Option("--noise", metavar="PCT", help="Noise of every reading, in %.")
    ] = 0.0,
    seeds: Annotated[int, typer.Option("--seeds", help="Draws of noise per curve.")] = 10,
    json_file: JsonFile = None,
) -> None:
    """Replay the finder on measured curves, beside trying every cap."""
    from wattloop.cli.cap_evaluation import evaluate_table

    check_target(json_file, "--json")
    evaluate_table(table, metric, k, noise / 100, seeds, json_file)
