"""Hold levers: nobody else sets them, every change is journaled, and all of it is put back.

with hold([lever_named(levers, "gpu:0/power_limit")]) as held:
    held.set({"gpu:0/power_limit": 250.0})
    ...
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from wattloop.control.grip import Report
from wattloop.control.guardian import guardian_wanted
from wattloop.control.holding import Hold
from wattloop.control.lever import Lever, Setting

__all__ = ["Hold", "applied", "hold"]


def hold(
    levers: Sequence[Lever],
    *,
    directory: Path | None = None,
    dry_run: bool = False,
    guardian: bool = True,
    report: Report | None = None,
) -> Hold:
    """Levers for the time of a `with` block.

    Args:
        levers: what will be set.
        directory: where locks and journals are, unless it is the machine's place.
        dry_run: write nothing anywhere; `Hold.writes` has what would be written.
        guardian: start a small process that restores if this one is killed with `kill -9`.
            `WATTLOOP_GUARDIAN=0` switches it off too.
        report: what is told of leftovers and of values that somebody else set; standard error
            unless given.
    """
    return Hold(
        levers,
        directory=directory,
        dry_run=dry_run,
        guardian=guardian and guardian_wanted(),
        report=report or _say,
    )


@contextmanager
def applied(lever: Lever, value: Setting, **options: object) -> Iterator[Hold]:
    """One lever at one value for the time of a block; options as for `hold`."""
    with hold([lever], **options) as held:  # type: ignore[arg-type]  # checked by hold itself
        held.set({lever.name: value})
        yield held


def _say(message: str) -> None:
    if sys.stderr is not None:
        try:
            sys.stderr.write(message + "\n")
        except (OSError, ValueError):
            return
