"""Before levers are held: whether they may be set, what they are, and that they can go back."""

from collections.abc import Mapping

from wattloop.control.lever import Lever
from wattloop.control.recorded import Entry
from wattloop.core.errors import ConfigError, LeverError

__all__ = ["check_permissions", "looked_at"]


def check_permissions(levers: Mapping[str, Lever]) -> None:
    """Raise LeverError, with what would allow it, for a lever this user may not set."""
    for lever in levers.values():
        state = lever.state()
        if not state.available:
            remedy = f"; {state.remedy}" if state.remedy else ""
            raise LeverError(f"{lever.name} cannot be set: {state.reason}{remedy}")


def looked_at(levers: Mapping[str, Lever]) -> dict[str, Entry]:
    """What every part of every lever is now.

    Raises:
        LeverError: one cannot be read, or stands outside its limits and could not be put back.
    """
    entries = {}
    for name, lever in levers.items():
        entry = Entry(name, lever.device, lever.state().unit, dict(lever.parts()))
        for part, value in entry.previous.items():
            try:
                lever.check_part(part, value)
            except ConfigError as reason:
                raise LeverError(
                    f"{reason}: that is its present value, and it could not be put back to it; "
                    "set it to a value within the limits first"
                ) from None
        entries[name] = entry
    return entries
