"""`wattloop calibrate`: measure a GPU in minutes, and fit the constants predict uses."""

import typer

from wattloop.cli.calibrate_collect import collect_command
from wattloop.cli.calibrate_fit import fit_command
from wattloop.cli.calibrate_host import host_command

__all__ = ["app"]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Measure a GPU in minutes, and fit the constants predict uses.",
    epilog="Example: wattloop calibrate collect -o mine.jsonl; wattloop calibrate fit mine.jsonl.",
)
app.command("collect")(collect_command)
app.command("fit")(fit_command)
app.command("host")(host_command)
