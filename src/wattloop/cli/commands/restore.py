"""`wattloop restore`: restore levers that a killed program left changed."""

import sys
from collections.abc import Iterable

import typer

from wattloop.cli.app import Verb
from wattloop.cli.options import JsonFile, option
from wattloop.cli.output import say, write_json
from wattloop.control.journal import state_directory
from wattloop.control.lever import format_setting
from wattloop.control.restore import RestoreResult, RestoreStatus
from wattloop.control.restore import restore as restore_levers
from wattloop.core.errors import ConfigError

app = Verb()
NOT_RESTORED = 1


@app.command(
    "restore",
    example="wattloop restore",
    epilog="Exit code 0 when nothing is left to restore, 1 when something could not be "
    "restored, was set to another value since by another program, was left by another user, or "
    "is of a device that has not come back after a reboot.",
)
def restore(
    *,
    dry_run: bool = option("--dry-run", "Show every write; write nothing."),
    force: bool = option(
        "--force",
        "Also overwrite values that another program has set since, and restore "
        "what programs of other users left.",
    ),
    forget: bool = option("--forget", "Keep the present values; drop what is left to restore."),
    json_file: JsonFile = None,
) -> None:
    """Restore power limits, clocks and governors that a crashed program left changed.

    Programs that are alive keep what they have set.
    """
    if force and forget:
        raise ConfigError("--force writes the previous values, --forget drops them; give one")
    results = restore_levers(dry_run=dry_run, force=force, forget=forget)
    data = {
        "directory": str(state_directory(create=False)),
        "dry_run": dry_run,
        "levers": [result.to_dict() for result in results],
        "ok": not is_unrestored(results),
    }
    write_json(data, json_file)
    if json_file != "-":
        for result in results:
            sys.stdout.write(restore_text(result) + "\n")
        if not results:
            sys.stdout.write("Nothing is left to restore.\n")
    raise typer.Exit(NOT_RESTORED if is_unrestored(results) else 0)


SILENT = (RestoreStatus.ALREADY, RestoreStatus.REBOOTED, RestoreStatus.ABSENT, RestoreStatus.IN_USE)


def restore_leftovers() -> list[RestoreResult]:
    """Restore levers of crashed programs before setting any; report to standard error."""
    results = restore_levers()
    for result in results:
        if result.fate not in SILENT:
            say(f"wattloop: leftover of {result.owner or 'a dead process'}: {restore_text(result)}")
    return results


def restore_text(result: RestoreResult) -> str:
    name = f"{result.lever} ({result.part})" if result.part else result.lever
    match result.fate:
        case RestoreStatus.RESTORED:
            return f"{name} restored to {format_setting(result.previous)}"
        case RestoreStatus.ALREADY:
            return f"{name} was back at {format_setting(result.previous)}"
        case RestoreStatus.REBOOTED:
            return (
                f"{name}: the machine was restarted since; left at {format_setting(result.found)}"
            )
        case RestoreStatus.FORGOTTEN:
            return f"{name}: forgotten; it was {format_setting(result.previous)}"
        case RestoreStatus.PLANNED:
            return f"{name}: {result.message}"
        case _:
            return result.message if name in result.message else f"{name}: {result.message}"


def is_unrestored(results: Iterable[RestoreResult]) -> bool:
    """Return True when a lever of a crashed program is still changed."""
    left = (
        RestoreStatus.FAILED,
        RestoreStatus.CHANGED,
        RestoreStatus.FOREIGN,
        RestoreStatus.ABSENT,
    )
    return any(result.fate in left for result in results)
