"""The GPUs of a job, and the caps they can all be set to."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wattloop.characterize.quantities import expanded
from wattloop.control.inventory import levers_named
from wattloop.control.lever import Lever
from wattloop.control.values import parse_setting
from wattloop.core.errors import ConfigError

__all__ = ["CapPlan", "cap_plan"]

MOST_CAPS = 13
STEPS_W = (5.0, 10.0, 20.0, 25.0, 50.0, 100.0, 200.0)


@dataclass(frozen=True, slots=True)
class CapPlan:
    """Power limits of one or more GPUs, all set to the same cap.

    Attributes:
        caps_w: from the lowest to the highest, which is the reference.
    """

    levers: tuple[Lever, ...]
    caps_w: tuple[float, ...]

    @property
    def devices(self) -> tuple[str, ...]:
        """`gpu:0`, as meters call them."""
        return tuple(lever.name.partition("/")[0] for lever in self.levers)

    def settings(self, cap_w: float) -> dict[str, float]:
        """The value of each lever."""
        return {lever.name: cap_w for lever in self.levers}

    def writes(self, cap_w: float) -> list[str]:
        """What setting a cap would write, for people."""
        return [line for x in self.levers for line in x.write_text(cap_w).splitlines()]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {"levers": [lever.name for lever in self.levers], "caps_w": list(self.caps_w)}


def cap_plan(
    levers: Sequence[Lever],
    gpus: str | None = None,
    caps: str | None = None,
    *,
    named: str = "--caps",
) -> CapPlan:
    """Caps that every chosen GPU accepts.

    Without `caps` they are round numbers from the lowest the cards allow up to the present limit:
    a limit that somebody has lowered is not raised.

    Args:
        levers: of this machine.
        gpus: numbers with commas; all GPUs unless given.
        caps: `100:250:25`, or values with commas, in W or % of the card's default limit.
        named: what `caps` is called where a person gave it, or could.

    Raises:
        ConfigError: no GPU with a power limit, or one that may not be set, with what would help; or
            caps outside the limits of a card.
    """
    chosen = levers_named(
        levers, "gpu/power_limit" if gpus is None else f"gpu:{_numbers(gpus)}/power_limit"
    )
    states = [lever.state() for lever in chosen]
    for state in states:
        if not state.available:
            remedy = f"; {state.remedy}" if state.remedy else ""
            raise ConfigError(f"{state.name} cannot be set: {state.reason}{remedy}")
    if caps is not None:
        try:
            values = expanded(caps)
        except ValueError as error:
            raise ConfigError(f"{named}: {error}") from None
        numbers = sorted({_accepted(value, chosen) for value in values})
    else:
        low_w = max(state.low or 0.0 for state in states)
        high_w = min(
            state.value if isinstance(state.value, int | float) else state.high or 0.0
            for state in states
        )
        if not 0 < low_w < high_w:
            raise ConfigError(
                f"{', '.join(s.name for s in states)}: the limit is {high_w:g} W and cannot be set "
                f"lower than {low_w:g} W, so there is nothing to choose; give {named}"
            )
        numbers = _round_caps(low_w, high_w)
        for cap_w in numbers:
            _accepted(cap_w, chosen)
    if len(numbers) < 2:
        raise ConfigError(f"{named} {caps}: give at least two different caps")
    return CapPlan(tuple(chosen), tuple(numbers))


def _numbers(gpus: str) -> str:
    words = [word.strip().removeprefix("gpu:") for word in gpus.split(",") if word.strip()]
    if not words or not all(word.isdigit() for word in words):
        raise ConfigError(f"--gpus {gpus}: write numbers with commas, such as 0,1")
    return ",".join(words)


def _accepted(value: str | float, levers: Sequence[Lever]) -> float:
    """A cap as every card takes it."""
    taken = {parse_setting(value, lever) for lever in levers}
    numbers = [number for number in taken if isinstance(number, int | float)]
    if len(numbers) != 1:
        raise ConfigError(
            f"{value} means different caps on these GPUs ({', '.join(f'{n:g} W' for n in numbers)})"
            "; give watts, or choose GPUs of one kind with --gpus"
        )
    return float(numbers[0])


def _round_caps(low_w: float, high_w: float) -> list[float]:
    """Steps of a round number of watts below the highest, both ends included."""
    step_w = next((s for s in STEPS_W if (high_w - low_w) / s < MOST_CAPS), STEPS_W[-1])
    inner = math.floor((high_w - 0.4 * step_w) / step_w) * step_w
    caps = [high_w]
    while inner > low_w + 0.4 * step_w:
        caps.append(inner)
        inner -= step_w
    return sorted({*caps, low_w})
