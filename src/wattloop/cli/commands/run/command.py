"""`wattloop run -- CMD`: measure any program."""

from typing import Annotated

import typer

from wattloop.cli.commands.run.execution import RunRequest, execute
from wattloop.cli.options import (
    Config,
    Devices,
    Interval,
    JsonFile,
    Meters,
    Pue,
    StorePlace,
    Tariff,
    Zone,
)

app = typer.Typer(add_completion=False)


@app.command(
    "run",
    context_settings={"allow_interspersed_args": False},
    epilog="Example: wattloop run --name night -- python train.py --epochs 3. "
    "The exit code is the program's own; 128+N when signal N ended it.",
)
def run(  # noqa: PLR0913 - one parameter per option
    command: Annotated[
        list[str], typer.Argument(metavar="PROGRAM", help="What to measure, and its arguments.")
    ],
    *,
    name: Annotated[str, typer.Option("--name", "-n", help="What the run is called.")] = "",
    tag: Annotated[
        list[str] | None, typer.Option("--tag", "-t", metavar="KEY=VALUE", help="A label; repeat.")
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow", "--wait-children", help="Also wait for processes it leaves behind."
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no summary.")] = False,
    json_file: JsonFile = None,
    prometheus: Annotated[
        str | None,
        typer.Option("--prometheus", metavar="FILE", help="Write a Prometheus text file."),
    ] = None,
    interval: Interval = None,
    devices: Devices = None,
    meters: Meters = None,
    share: Annotated[
        str | None,
        typer.Option(
            "--share",
            metavar="HOW",
            help="process: only the program's part, by CPU time and GPU utilisation (modelled).",
        ),
    ] = None,
    pue: Pue = None,
    zone: Zone = None,
    tariff: Tariff = None,
    store: StorePlace = None,
    config: Config = None,
) -> None:
    """Measure the energy of any program.

    Its input, output, terminal, signals and exit code are as without wattloop.
    The summary goes to standard error.
    """
    request = RunRequest(
        command=command,
        name=name,
        tag=tag or [],
        follow=follow,
        quiet=quiet,
        json_file=json_file,
        prometheus=prometheus,
        interval=interval,
        devices=devices,
        meters=meters,
        share=share,
        pue=pue,
        zone=zone,
        tariff=tariff,
        store=store,
        config=config,
    )
    raise typer.Exit(execute(request))
