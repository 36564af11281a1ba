"""`wattloop restore`: restore levers that a killed program left changed."""

import sys
from typing import Annotated

import typer

from wattloop.cli.lever_report import fate_text, unsettled
from wattloop.cli.options import JsonFile
from wattloop.cli.output import check_target, write_json
from wattloop.control.journal import state_directory
from wattloop.control.restore import restore as restore_levers
from wattloop.core.errors import ConfigError

app = typer.Typer(add_completion=False)


NOT_RESTORED = 1


@app.command(
    "restore",
    epilog="Exit code 0 when nothing is left to restore, 1 when something could not be "
    "restored, was set to another value since by another program, was left by another user, or "
    "is of a device that has not come back after a reboot.",
)
def restore(
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show every write; write nothing.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Also overwrite values that another program has set since, and restore "
            "what programs of other users left.",
        ),
    ] = False,
    forget: Annotated[
        bool,
        typer.Option("--forget", help="Keep the present values; drop what is left to restore."),
    ] = False,
    json_file: JsonFile = None,
) -> None:
    """Restore power limits, clocks and governors that a crashed program left changed.

    Programs that are alive keep what they have set.
    """
    check_target(json_file, "--json")
    if force and forget:
        raise ConfigError("--force writes the previous values, --forget drops them; give one")
    results = restore_levers(dry_run=dry_run, force=force, forget=forget)
    if json_file is not None:
        data = {
            "directory": str(state_directory(create=False)),
            "dry_run": dry_run,
            "levers": [result.to_dict() for result in results],
            "ok": not unsettled(results),
        }
        write_json(data, json_file)
    if json_file != "-":
        for result in results:
            sys.stdout.write(fate_text(result) + "\n")
        if not results:
            sys.stdout.write("Nothing is left to restore.\n")
    raise typer.Exit(NOT_RESTORED if unsettled(results) else 0)
