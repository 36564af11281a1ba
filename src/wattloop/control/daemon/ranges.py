"""Ranges of values as an operator writes them: `100 W to 400 W`, `50% to 100%`, `600 to 1980 MHz`.

A bound may be left out (`to 400 W`, `100 W to`), and `any` is the whole range of the device. For a
lever that is a choice, the names. A cap is `70%`, `350 W`, or `-10%`: below the device's default.
"""

from dataclasses import dataclass

from wattloop.control.lever import LeverState, Setting, shown
from wattloop.control.values import whole_of
from wattloop.core.quantities import Dimension, number_and_unit, quantity

__all__ = ["ANY", "Amount", "Range", "amount", "range_of"]


@dataclass(frozen=True, slots=True)
class Amount:
    """Watts, MHz, or a share of what the device leaves the factory with."""

    number: float
    unit: str

    def on(self, state: LeverState) -> float:
        """As this device counts.

        Raises:
            ValueError: it counts in something else, or states no maximum to take a share of.
        """
        if self.unit != "%":
            if self.unit != state.unit:
                raise ValueError(f"{state.name} is in {state.unit}, not in {self.unit}")
            return self.number
        whole = whole_of(state)
        if whole is None:
            raise ValueError(f"{state.name}: the device states no maximum to take {self} of")
        return whole * self.number / 100

    def __str__(self) -> str:
        return f"{self.number:g}%" if self.unit == "%" else f"{self.number:g} {self.unit}"


@dataclass(frozen=True, slots=True)
class Range:
    """What may be set; no bounds and no choices is all that the device takes."""

    low: Amount | None = None
    high: Amount | None = None
    choices: tuple[str, ...] = ()

    def limits(self, state: LeverState) -> tuple[float | None, float | None]:
        """Lowest and highest value on this device, within its own limits.

        Raises:
            ValueError: the bounds are none of this device's.
        """
        low = state.low if self.low is None else max(self.low.on(state), state.low or 0.0)
        high = self.high.on(state) if self.high is not None else state.high
        if high is not None and state.high is not None:
            high = min(high, state.high)
        return low, high

    def refusal(self, state: LeverState, value: Setting) -> str:
        """Why a value may not be set; empty when it may."""
        if isinstance(value, str) or state.unit == "name":
            if not self.choices or value in self.choices:
                return ""
            return f"{shown(value)!r} is not among {', '.join(self.choices)}"
        try:
            low, high = self.limits(state)
        except ValueError as error:
            return str(error)
        if value is None:  # not locked: anything up to the device's own highest
            free = self.high is None or (state.high is not None and high == state.high)
            return "" if free else f"leaving it to the device would pass {self.high}"
        # shares are rarely round, and a device rounds
        slack = 1e-6 * abs(value) + 1e-3
        if (low is not None and value < low - slack) or (high is not None and value > high + slack):
            return f"{shown(value, state.unit)} is outside {self.text(state)}"
        return ""

    def text(self, state: LeverState | None = None) -> str:
        """For people; with a device, in its own unit."""
        if self.choices:
            return ", ".join(self.choices)
        if state is None:
            low, high = self.low or "", self.high or ""
            return f"{low} to {high}".strip() if low or high else "any"
        try:
            lowest, highest = self.limits(state)
        except ValueError as error:
            return str(error)
        return f"{shown(lowest) if lowest else 0} to {shown(highest)} {state.unit}"


ANY = Range()


def range_of(text: object) -> Range:
    """What stands in the rules.

    Raises:
        ValueError: how to write it.
    """
    if isinstance(text, list):
        if not text or not all(isinstance(name, str) for name in text):
            raise ValueError("write the names that may be set, such as [powersave, performance]")
        return Range(choices=tuple(text))
    if not isinstance(text, str):
        raise ValueError(HOW)
    words = text.strip()
    if words == "any":
        return ANY
    low_text, separator, high_text = words.partition("to")
    if not separator or not (low_text.strip() or high_text.strip()):
        raise ValueError(HOW)
    high = amount(high_text) if high_text.strip() else None
    low = amount(low_text, high.unit if high else "") if low_text.strip() else None
    if low and high and "%" not in (low.unit, high.unit) and low.unit != high.unit:
        raise ValueError(f"{low} to {high} is no range; {HOW}")
    if low and high and low.unit == high.unit and low.number > high.number:
        raise ValueError(f"{low} to {high} is no range; {HOW}")
    if (low and low.number < 0) or (high and high.number <= 0):
        raise ValueError(f"a bound is above zero; {HOW}")
    return Range(low, high)


def amount(text: object, unit: str = "") -> Amount:
    """`350 W`, `70%`, or `-10%`: that much below the device's default.

    Raises:
        ValueError: how to write it.
    """
    words = str(text).strip()[:40]
    what = "an amount; write it as 250 W, 1400 MHz or 70%"
    if isinstance(text, bool):
        raise ValueError(f"{words!r} is not {what}")
    found = number_and_unit(words)
    if found is not None and not found[1]:
        words = f"{words} {unit}".strip()
    stated = quantity(words, Dimension.SHARE, Dimension.POWER, Dimension.FREQUENCY, what=what)
    if not stated.unit:
        raise ValueError(f"{words!r} lacks its unit; write 250 W, 1400 MHz or 70%")
    if stated.dimension is Dimension.SHARE:
        percent = round(100 * stated.value, 9)
        return Amount(percent + 100 if words.startswith("-") else percent, "%")
    if stated.dimension is Dimension.POWER:
        return Amount(stated.value, "W")
    return Amount(stated.value / 1e6, "MHz")


HOW = "write a range as '100 W to 400 W', '50% to 100%' or '600 MHz to 1980 MHz', or 'any'"
