"""Lists, ranges and times as people write them in a specification."""

import math
from collections.abc import Mapping
from typing import Any

from wattloop.core.quantities import Dimension, number_and_unit, quantity

__all__ = ["Values", "expanded", "range_from_text", "seconds"]

Values = list[float | str]
"""Settings of one lever before the machine has been asked: `170.0`, `70%`, `performance`."""

MOST_VALUES = 1_000
RANGE_KEYS = ("from", "to", "step")


def expanded(value: Any) -> Values:
    """`[100, 150]`, `{from: 100, to: 260, step: 10}`, `100:260:10` or a single value, as a list.

    Raises:
        ValueError: with what to write.
    """
    if isinstance(value, Mapping):
        return _from_mapping(value)
    if isinstance(value, str) and value.count(":") == 2:
        return range_from_text(value)
    if isinstance(value, str) and "," in value:
        value = [part.strip() for part in value.split(",") if part.strip()]
    items = value if isinstance(value, list) else [value]
    if not items:
        raise ValueError("no value; write a list such as [200, 250]")
    for item in items:
        if isinstance(item, bool) or not isinstance(item, int | float | str):
            raise ValueError(f"{item!r} is neither a number nor a word")
    return [float(item) if isinstance(item, int | float) else item for item in items]


def range_from_text(text: str) -> Values:
    """`100:260:10`, or with a unit, `50%:100%:10%`."""
    return _from_mapping(dict(zip(RANGE_KEYS, text.split(":"), strict=True)))


def seconds(value: Any) -> Any:
    """`90`, `90 s`, `1.5 min` or `2 h` as seconds; anything else is left to be refused."""
    if not isinstance(value, str):
        return value
    what = "a time; write seconds, '10 min' or '2 h'"
    if value.strip().startswith("-"):
        raise ValueError(f"{value!r} is not {what}")
    return quantity(value, Dimension.TIME, what=what).value


def _from_mapping(value: Mapping[str, Any]) -> Values:
    missing = [key for key in RANGE_KEYS if key not in value]
    strange = [str(key) for key in value if key not in RANGE_KEYS]
    if missing or strange:
        raise ValueError(
            "a range has from, to and step"
            + (f"; {', '.join(missing)} missing" if missing else "")
            + (f"; '{strange[0]}' is unknown" if strange else "")
        )
    parts = [_number(value[key]) for key in RANGE_KEYS]
    units = {unit for _, unit in parts if unit} or {""}
    if len(units) > 1:
        raise ValueError(f"from, to and step have different units: {sorted(units)}")
    unit = units.pop()
    low, high, step = (number for number, _ in parts)
    if step == 0 or not all(map(math.isfinite, (low, high, step))):
        raise ValueError(f"the step of a range must not be {step:g}")
    step = math.copysign(step, high - low)
    count = math.floor((high - low) / step + 1e-9) + 1
    if count > MOST_VALUES:
        raise ValueError(f"{count} values; at most {MOST_VALUES} make sense")
    numbers = [round(low + i * step, 9) for i in range(count)]
    return [f"{n:g} {unit}".strip() if unit else n for n in numbers]


def _number(value: Any) -> tuple[float, str]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value), ""
    found = number_and_unit(str(value))
    if found is None:
        raise ValueError(f"{value!r} is not a number")
    return found
