"""Set levers together: all values checked first, writes in an order that works, then read back."""

from collections.abc import Callable, Mapping

from wattloop.control.lever import Lever, Setting, WaitsForAnother, shown
from wattloop.core.errors import ConfigError, LeverError

__all__ = ["checked", "rounded", "verify", "write_all"]


def checked(levers: Mapping[str, Lever], settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """The values as the devices take them.

    Raises:
        ConfigError: one is outside its device's limits, or two cannot be had together.
    """
    values = {name: levers[name].accepted(value) for name, value in settings.items()}
    for name in values:
        conflict = levers[name].conflict(values)
        if conflict:
            raise ConfigError(conflict)
    return values


def write_all(
    levers: Mapping[str, Lever], values: Mapping[str, Setting], note: Callable[[str], None]
) -> None:
    """Write accepted values; one that waits for another is written after it.

    Raises:
        LeverError: a device refuses.
    """
    waiting = dict(values)
    while waiting:
        put_off: dict[str, Setting] = {}
        for name, value in waiting.items():
            try:
                levers[name].write(value)
            except WaitsForAnother:
                if len(waiting) == 1:
                    raise
                put_off[name] = value
            else:
                note(levers[name].write_text(value))
        if len(put_off) == len(waiting):
            raise LeverError(f"{', '.join(put_off)}: each waits for the other to be set")
        waiting = put_off


def rounded(lever: Lever, wanted: Mapping[str, Setting]) -> dict[str, Setting]:
    """Parts that show another value than the one written, if only a little."""
    if not lever.reads_back:
        return {}
    shows = lever.parts()
    return {part: shows[part] for part, value in wanted.items() if shows.get(part) != value}


def verify(lever: Lever, wanted: Mapping[str, Setting], shows: Mapping[str, Setting]) -> None:
    """Raise LeverError for a part that shows what is not the value written."""
    unit = lever.state().unit
    for part, value in shows.items():
        if not lever.took(wanted[part], value):
            raise LeverError(
                f"{lever.name}{' of ' + part if part else ''} did not take "
                f"{shown(wanted[part], unit)}: it shows {shown(value, unit)}"
            )
