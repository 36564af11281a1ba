"""A machine on which something else runs, before it is measured."""

from wattloop.cli.output import say
from wattloop.measure.session import Session

__all__ = ["warn_if_busy"]

BUSY_LOAD = 0.5
"""Programs that want a core, on average over the last minute."""


def warn_if_busy(session: Session, consequence: str) -> None:
    """Say so, with what comes of it and what to do."""
    text = session.host.read_text("proc", "loadavg") or ""
    try:
        load = float(text.split()[0])
    except (IndexError, ValueError):
        return
    if load > BUSY_LOAD:
        say(f"wattloop: warning: the machine is not quiet (load {load:g}): {consequence}")
