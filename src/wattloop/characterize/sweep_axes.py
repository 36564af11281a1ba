"""What a sweep varies, in values this machine accepts; the default is always among them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wattloop.characterize.quantities import Values
from wattloop.control.inventory import levers_named
from wattloop.control.lever import Lever, Setting
from wattloop.control.values import parse_setting
from wattloop.core.errors import ConfigError

__all__ = ["DEFAULT", "Axis", "Level", "axis_of", "technique_of"]

DEFAULT = "default"
TECHNIQUES = (
    ("power_limit", "power cap"),
    ("clock", "clock"),
    ("frequency", "clock"),
    ("governor", "governor"),
)
"""End of a lever's name -> how the literature calls setting it."""


@dataclass(frozen=True, slots=True)
class Level:
    """One value of an axis.

    Attributes:
        label: for people and keys: `170 W`, `powersave`.
        number: for drawing; None for a choice, or a clock that is not locked.
        settings: the value of each lever.
    """

    label: str
    number: float | None
    settings: Mapping[str, Setting]
    is_default: bool = False


@dataclass(frozen=True, slots=True)
class Axis:
    """A lever, or all levers of a kind, as the user named it, with its levels."""

    name: str
    unit: str
    levels: tuple[Level, ...]
    levers: tuple[Lever, ...]

    @property
    def default(self) -> Level:
        """The level to compare with."""
        return next(level for level in self.levels if level.is_default)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the store; enough to make tables and figures later."""
        return {
            "name": self.name,
            "unit": self.unit,
            "technique": technique_of(self.name),
            "default": self.default.label,
            "levels": [{"label": level.label, "number": level.number} for level in self.levels],
        }


def axis_of(name: str, values: Values, levers: Sequence[Lever], where: str = "") -> Axis:
    """The levels of one line of a specification.

    Raises:
        ConfigError: no such lever, a value outside its limits, or a lever that may not be set,
            with what would allow it.
    """
    try:
        mine = levers_named(levers, name)
        _check_settable(mine)
        settings = [{lever.name: parse_setting(v, lever) for lever in mine} for v in values]
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}" if where else str(error)) from None
    default = {lever.name: _default_of(lever) for lever in mine}
    unit = mine[0].state().unit
    chosen: list[dict[str, Setting]] = []
    for candidate in [*settings, default]:
        if candidate not in chosen:
            chosen.append(candidate)
    levels = tuple(_level(s, unit, is_default=s == default) for s in chosen)
    return Axis(name, unit, levels, tuple(mine))


def technique_of(lever: str) -> str:
    """`power cap`, `clock` or `governor`; the lever's own name where there is no other."""
    leaf = lever.rpartition("/")[2]
    return next((name for end, name in TECHNIQUES if end in leaf), leaf)


def _check_settable(levers: Sequence[Lever]) -> None:
    for lever in levers:
        state = lever.state()
        if not state.available:
            remedy = f"; {state.remedy}" if state.remedy else ""
            raise ConfigError(f"{lever.name} cannot be set: {state.reason}{remedy}")


def _default_of(lever: Lever) -> Setting:
    """What the device leaves the factory with; where it does not say, what it stands at."""
    try:
        return parse_setting(DEFAULT, lever)
    except ConfigError:
        return lever.read()


def _level(settings: Mapping[str, Setting], unit: str, *, is_default: bool) -> Level:
    values = list(dict.fromkeys(settings.values()))
    first = values[0]
    labels = [_label(value, unit) for value in values]
    number = float(first) if isinstance(first, int | float) else None
    return Level(" / ".join(labels), number, dict(settings), is_default)


def _label(value: Setting, unit: str) -> str:
    if value is None:
        return "not locked"
    if isinstance(value, str):
        return value
    return f"{value:g} {unit}".strip()
