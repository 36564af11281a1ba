"""Messages of commands about restored levers."""

from collections.abc import Iterable

from wattloop.cli.output import say
from wattloop.control.lever import format_setting
from wattloop.control.restore import RestoreResult, RestoreStatus, restore

SILENT = (RestoreStatus.ALREADY, RestoreStatus.REBOOTED, RestoreStatus.ABSENT, RestoreStatus.IN_USE)


def restore_leftovers() -> list[RestoreResult]:
    """Restore levers of crashed programs before setting any; report to standard error."""
    results = restore()
    for result in results:
        if result.fate not in SILENT:
            say(f"wattloop: leftover of {result.owner or 'a dead process'}: {restore_text(result)}")
    return results


def restore_text(result: RestoreResult) -> str:
    """Format the result of restoring one lever."""
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
