"""`wattloop slurm`: policies on a real cluster."""

from typing import Annotated

import typer

from wattloop.cli.options import Config, JsonFile, StorePlace
from wattloop.cli.output import check_target
from wattloop.cli.slurm_replay import replay_command
from wattloop.cli.slurm_status import release_command, status_command

__all__ = ["app"]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Let a scheduling policy run a Slurm cluster: order, places, caps, a power budget.",
    epilog="Look first: wattloop slurm run --policy zeus --observe. Then: wattloop slurm run "
    "--policy charon --budget 4500W. If it stops or dies, Slurm goes on by itself.",
)


@app.command("run")
def run_command(  # noqa: PLR0913 - one parameter per option
    *,
    policy: Annotated[
        str,
        typer.Option(
            "--policy", "-p", metavar="POLICY", help="Such as fifo, zeus, charon; FILE.py:Class."
        ),
    ] = "zeus",
    budget: Annotated[
        str | None,
        typer.Option("--budget", metavar="POWER", help="Most that all nodes may draw: 4.5kW."),
    ] = None,
    partition: Annotated[
        list[str] | None,
        typer.Option(
            "--partition", metavar="NAME", help="Whose jobs are ours to place (may be repeated)."
        ),
    ] = None,
    observe: Annotated[
        bool, typer.Option("--observe", help="Change nothing; show what it would do.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="One round: print its commands, run none.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="One round, then stop.")] = False,
    interval: Annotated[
        float,
        typer.Option(
            "--interval",
            "-i",
            metavar="SECONDS",
            help="Between two rounds; down to a fifth of it while jobs come and go.",
        ),
    ] = 1.0,
    lease: Annotated[
        float,
        typer.Option(
            "--lease", metavar="SECONDS", help="How long Slurm waits for a driver that died."
        ),
    ] = 20.0,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster", metavar="FILE", help="Watts of GPUs and hosts (docs/clusters.md)."
        ),
    ] = None,
    gpus_only: Annotated[
        bool, typer.Option("--gpus-only", help="Count the power of GPUs, not of hosts.")
    ] = False,
    mapping: Annotated[
        str | None,
        typer.Option("--mapping", metavar="FILE", help="Which jobs train what, by their names."),
    ] = None,
    oracle: Annotated[
        str, typer.Option("--oracle", metavar="KIND", help="'analytic' predicts, 'table' looks up.")
    ] = "analytic",
    fleet: Annotated[
        str | None,
        typer.Option("--fleet", metavar="URL", help="The fleet's server: power as measured."),
    ] = None,
    token_file: Annotated[
        str | None, typer.Option("--token-file", metavar="FILE", help="Token for the server.")
    ] = None,
    annotate: Annotated[
        bool | None,
        typer.Option(
            "--annotate/--no-annotate",
            help="Write the measured energy of ended jobs into AdminComment (default: with "
            "--fleet or --store; not with --observe).",
        ),
    ] = None,
    standby: Annotated[
        bool,
        typer.Option(
            "--standby/--no-standby", help="Let jobs through ahead, for GPUs about to be free."
        ),
    ] = True,
    state: Annotated[
        str | None,
        typer.Option("--state", metavar="FILE", help="Where the driver keeps its notes."),
    ] = None,
    log: Annotated[
        str | None, typer.Option("--log", metavar="FILE", help="Log, one JSON object a line.")
    ] = None,
    store: StorePlace = None,
    config: Config = None,
    json_file: JsonFile = None,
) -> None:
    """Let a policy decide what Slurm starts, where, and under which cap.

    Jobs of the managed partitions start when the policy says so. All others are left to Slurm.
    """
    from wattloop.cli.slurm_request import RunRequest
    from wattloop.cli.slurm_run import execute

    check_target(json_file, "--json")
    execute(
        RunRequest(
            policy=policy,
            budget=budget,
            partitions=tuple(partition or ()),
            observe=observe,
            dry_run=dry_run,
            once=once,
            interval_s=interval,
            lease_s=lease,
            cluster=cluster,
            gpus_only=gpus_only,
            mapping=mapping,
            oracle=oracle,
            fleet=fleet,
            token_file=token_file,
            annotate=annotate,
            standby=standby,
            state=state,
            log=log,
            store=store,
            config=config,
            json_file=json_file,
        )
    )


app.command("status")(status_command)
app.command("release")(release_command)
app.command("replay")(replay_command)
