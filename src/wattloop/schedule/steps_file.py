"""Budgets, prices and carbon intensities over the day, as people write them."""

import csv
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from wattloop.core.errors import ConfigError
from wattloop.core.user_code import user_path
from wattloop.core.yaml_spec import nearest
from wattloop.hardware.carbon import annual_intensity
from wattloop.schedule.amounts import number, watts
from wattloop.schedule.steps import DAY_S, Steps

__all__ = ["StepsError", "Written", "budget_steps", "carbon_steps", "clock_s", "price_steps"]

HOUR_S = 3_600.0


class Written(NamedTuple):
    """Steps and where they come from."""

    steps: Steps
    source: str


class StepsError(ValueError):
    """What is wrong, and where below the field itself: `(2, "from")`."""

    def __init__(self, message: str, place: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.place = place


def budget_steps(value: Any, folder: Path | None = None) -> Written:
    """`4500 W`, or `[{from: "18:00", value: 4 kW}, ...]`, or `{csv: FILE}` with hourly watts.

    Raises:
        StepsError: with what to write.
    """
    return _steps(value, watts, folder)


def price_steps(value: Any, folder: Path | None = None) -> Written:
    """Per kilowatt-hour, in the same ways."""
    return _steps(value, number, folder)


def carbon_steps(value: Any, folder: Path | None = None) -> Written:
    """Grams per kilowatt-hour, in the same ways; or a country, by its annual mean."""
    if value is False:
        raise StepsError("YAML reads NO as 'false'; for Norway write NOR")
    if isinstance(value, str) and not re.match(r"\s*[-+.\d]", value):
        try:
            entry = annual_intensity(value)
        except ConfigError as error:
            raise StepsError(str(error)) from None
        said = f"{entry.country}, mean of {entry.year} ({entry.source})"
        return Written(Steps.constant(entry.g_co2e_per_kwh), said)
    return _steps(value, number, folder)


def clock_s(value: Any) -> float:
    """Seconds after midnight of `18:00` or `18:00:30`.

    YAML reads 18:00 without quotes as 1,080, a number to base 60; that is understood, too.

    Raises:
        StepsError: it is no time of the day.
    """
    wrong = StepsError(f'{value!r} is not a time of the day; write it as "18:00"')
    if isinstance(value, int) and not isinstance(value, bool):
        # three parts are at least 3,600, two at most 1,439; below 60 there was no colon
        if 60 <= value < 1_440:
            return value * 60.0
        if 3_600 <= value < DAY_S:
            return float(value)
        raise wrong
    match = re.fullmatch(r"\s*(\d{1,2}):(\d{2})(?::(\d{2}))?\s*", str(value))
    if match is None:
        raise wrong
    hour, minute, second = (int(part or 0) for part in match.groups())
    if hour > 23 or minute > 59 or second > 59:
        raise wrong
    return hour * HOUR_S + minute * 60.0 + second


def _steps(value: Any, amount: Callable[[Any], Any], folder: Path | None) -> Written:
    if isinstance(value, list):
        return Written(_daily(value, amount), "stated, over the day")
    if isinstance(value, Mapping):
        return _hourly(value, amount, folder)
    return Written(Steps.constant(_amount(value, amount)), "stated")


def _amount(value: Any, amount: Callable[[Any], Any], place: tuple[str | int, ...] = ()) -> float:
    try:
        found = amount(value)
    except ValueError as error:
        raise StepsError(str(error), place) from None
    if not isinstance(found, int | float) or not math.isfinite(found) or found < 0:
        raise StepsError(f"must be a number, 0 or more, not {value!r}", place)
    return float(found)


def _daily(items: list[Any], amount: Callable[[Any], Any]) -> Steps:
    if not items:
        raise StepsError('no step; write [{from: "06:00", value: ...}, ...]')
    found: dict[float, float] = {}
    for place, item in enumerate(items):
        if not isinstance(item, Mapping):
            raise StepsError('write {from: "18:00", value: ...}', (place,))
        for key in item:
            if key not in ("from", "value"):
                said = f"unknown field; {nearest(str(key), ['from', 'value'])}"
                raise StepsError(said, (place, str(key)))
        for key in ("from", "value"):
            if key not in item:
                raise StepsError(f"'{key}' is missing", (place,))
        try:
            time_s = clock_s(item["from"])
        except StepsError as error:
            raise StepsError(str(error), (place, "from")) from None
        if found and time_s <= max(found):
            raise StepsError("is not after the step before it", (place, "from"))
        found[time_s] = _amount(item["value"], amount, (place, "value"))
    if 0.0 not in found:
        # before the first step of a day, the last one of the day before goes on
        found = {0.0: list(found.values())[-1], **found}
    if len(found) == 1:
        return Steps.constant(found[0.0])
    return Steps(tuple(found), tuple(found.values()), DAY_S)


def _hourly(value: Mapping[str, Any], amount: Callable[[Any], Any], folder: Path | None) -> Written:
    for key in value:
        if key not in ("csv", "column"):
            raise StepsError(f"unknown field; {nearest(str(key), ['csv', 'column'])}", (str(key),))
    if "csv" not in value:
        raise StepsError("write a value, a list of {from, value}, or {csv: FILE}")
    name, column = str(value["csv"]), value.get("column")
    path = Path(user_path(name))
    if folder is not None and not path.is_absolute():
        path = folder / path
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            rows = [row for row in csv.reader(lines) if any(cell.strip() for cell in row)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise StepsError(f"{name}: cannot be read: {reason}", ("csv",)) from None
    if len(rows) < 2:
        raise StepsError(f"{name}: has no values; a header and a value per hour", ("csv",))
    place = _column(rows[0], column, name)
    values = [_cell(row, place, name, line, amount) for line, row in enumerate(rows[1:], 2)]
    if len(values) == 1:
        return Written(Steps.constant(values[0]), name)
    times_s = tuple(hour * HOUR_S for hour in range(len(values)))
    return Written(Steps(times_s, tuple(values), len(values) * HOUR_S), f"{name}, hour by hour")


def _column(header: list[str], column: Any, name: str) -> int:
    names = [cell.strip() for cell in header]
    if column is None:
        if len(names) > 2:
            said = f"{name}: has columns {', '.join(names)}; say which with 'column'"
            raise StepsError(said, ("csv",))
        return len(names) - 1  # a time and the value, or the value alone
    if str(column) not in names:
        said = f"{name}: has no column '{column}'; {nearest(str(column), names)}"
        raise StepsError(said, ("column",))
    return names.index(str(column))


def _cell(row: list[str], place: int, name: str, line: int, amount: Callable[[Any], Any]) -> float:
    text = row[place].strip() if place < len(row) else ""
    try:
        return _amount(text, amount)
    except StepsError:
        said = f"{name}:{line}: {text!r} is no number of 0 or more"
        raise StepsError(said, ("csv",)) from None
