"""`wattloop devices`: what can be measured and controlled here, and what would allow the rest."""

import os
from typing import Annotated, Any

import typer

from wattloop.cli.commands.devices.view import as_dict, print_report
from wattloop.cli.options import Config, Devices, JsonFile, Meters
from wattloop.cli.output import check_target, write_json
from wattloop.cli.progress import counted
from wattloop.cli.settings import settings_of
from wattloop.control.registry import inventory as levers_here
from wattloop.core.settings import SENSORS
from wattloop.hardware.host import Host
from wattloop.measure.verify import DURATION_S, Check, verify
from wattloop.meters.base import Context
from wattloop.meters.registry import detect
from wattloop.meters.visible_gpus import gpus_left_out

app = typer.Typer(add_completion=False)


@app.command("devices")
def devices(
    *,
    json_file: JsonFile = None,
    check: Annotated[
        bool,
        typer.Option("--verify", help="Compare sources of the same domain over a few seconds."),
    ] = False,
    seconds: Annotated[
        float,
        typer.Option("--seconds", min=0.5, max=600, help="How long --verify compares."),
    ] = DURATION_S,
    everything: Annotated[
        bool, typer.Option("--all", help="Also list what this machine plainly does not have.")
    ] = False,
    wanted: Devices = None,
    meters: Meters = None,
    config: Config = None,
) -> None:
    """Show what can be measured and controlled here, and what would allow the rest.

    Nothing is ever set by this command.
    """
    check_target(json_file, "--json")
    settings = settings_of(config, needs=SENSORS, devices=wanted, meters=meters)
    context = Context(Host.from_environment(), settings)
    inventory = detect(context)
    try:
        levers = levers_here(context).states()
        checks = _checks(context, inventory, seconds, json_file) if check else None
        hidden = gpus_left_out(context, inventory, os.environ)
        if json_file is not None:
            write_json(as_dict(inventory, levers, checks, hidden), json_file)
        if json_file != "-":
            print_report(inventory, levers, checks, hidden, everything=everything)
    finally:
        inventory.close()


def _checks(context: Context, inventory: Any, seconds: float, json_file: str | None) -> list[Check]:
    """Compare, with a progress bar for a person who waits."""
    if seconds < 2:
        return verify(inventory.meters, context.clock, seconds)
    with counted("comparing sources", total=1.0) as bar:
        return verify(
            inventory.meters, context.clock, seconds, lambda share: bar.update(share, 1.0)
        )
