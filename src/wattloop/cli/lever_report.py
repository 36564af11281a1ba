"""What commands say about levers that were put back."""

from collections.abc import Iterable

from wattloop.cli.output import say
from wattloop.control.lever import shown
from wattloop.control.putting_back import Fate, Restored
from wattloop.control.restore import restore

__all__ = ["fate_text", "restore_leftovers", "unsettled"]

SILENT = (Fate.ALREADY, Fate.REBOOTED, Fate.ABSENT, Fate.IN_USE)


def restore_leftovers() -> list[Restored]:
    """Put back what dead owners left, before anything is set; said on standard error."""
    results = restore()
    for result in results:
        if result.fate not in SILENT:
            say(f"wattloop: leftover of {result.owner or 'a dead process'}: {fate_text(result)}")
    return results


def fate_text(result: Restored) -> str:
    """One line for people."""
    name = f"{result.lever} ({result.part})" if result.part else result.lever
    match result.fate:
        case Fate.RESTORED:
            return f"{name} restored to {shown(result.previous)}"
        case Fate.ALREADY:
            return f"{name} was back at {shown(result.previous)}"
        case Fate.REBOOTED:
            return f"{name}: the machine was restarted since; left at {shown(result.found)}"
        case Fate.FORGOTTEN:
            return f"{name}: forgotten; it was {shown(result.previous)}"
        case Fate.PLANNED:
            return f"{name}: {result.message}"
        case _:
            return result.message if name in result.message else f"{name}: {result.message}"


def unsettled(results: Iterable[Restored]) -> bool:
    """Whether something is still not what it was, though its owner is dead."""
    left = (Fate.FAILED, Fate.CHANGED, Fate.FOREIGN, Fate.ABSENT)
    return any(result.fate in left for result in results)
