"""Step functions of time: power budgets, prices, carbon intensities; and their files."""

import csv
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from wattloop.core.errors import ConfigError
from wattloop.core.files import user_path
from wattloop.core.yaml_spec import nearest
from wattloop.hardware.carbon import annual_intensity
from wattloop.schedule.yaml_model import number, watts

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class StepFunction:
    """Step function that repeats after `period_s` if that is finite.

    Attributes:
        times_s: start of each value, ascending, the first one 0.
    """

    times_s: tuple[float, ...]
    values: tuple[float, ...]
    period_s: float = math.inf

    def __post_init__(self) -> None:
        times_s = (*self.times_s, self.period_s)
        if len(self.times_s) != len(self.values) or not self.values or times_s[0] != 0:
            raise ValueError("steps have as many times as values, the first time is 0")
        if any(b <= a for a, b in pairwise(times_s)):
            raise ValueError("the times of steps ascend, and end before the period does")

    @classmethod
    def constant(cls, value: float) -> "StepFunction":
        return cls((0.0,), (value,))

    def at(self, time_s: float) -> float:
        """Return the value at a time; at a change, the new one."""
        if len(self.values) == 1:
            return self.values[0]
        return self.values[self._step(time_s)[1]]

    def next_change_s(self, time_s: float) -> float:
        """Return the start of the next step after `time_s`; infinite when there is none."""
        if len(self.values) == 1:
            return math.inf
        turn, step = self._step(time_s)
        if step + 1 < len(self.times_s):
            return self._start_s(turn) + self.times_s[step + 1]
        return self._start_s(turn + 1)

    def mean(self) -> float:
        """Return the mean over a period; without a period, the mean of the values."""
        if math.isinf(self.period_s):
            return sum(self.values) / len(self.values)
        ends_s = (*self.times_s[1:], self.period_s)
        spans_s = (end_s - begin_s for begin_s, end_s in zip(self.times_s, ends_s, strict=True))
        parts = (value * span_s for value, span_s in zip(self.values, spans_s, strict=True))
        return sum(parts) / self.period_s

    def least(self, begin_s: float, end_s: float) -> float:
        """Return the least value between two times, both ends included."""
        found, time_s = self.at(begin_s), self.next_change_s(begin_s)
        end_s = min(end_s, begin_s + self.period_s)  # a period contains all values
        while time_s <= end_s and not math.isinf(time_s):
            found = min(found, self.at(time_s))
            time_s = self.next_change_s(time_s)
        return found

    def changes(self, begin_s: float) -> list[tuple[float, float]]:
        """Return (time, value) of the current step at `begin_s` and later ones, for a period."""
        found = [(begin_s, self.at(begin_s))]
        time_s = self.next_change_s(begin_s)
        while time_s <= begin_s + self.period_s and not math.isinf(time_s):
            found.append((time_s, self.at(time_s)))
            time_s = self.next_change_s(time_s)
        return found

    def longest_s(self, begin_s: float, value: float) -> float:
        """Return the longest uninterrupted time from `begin_s` on with at least this value."""
        if len(self.values) == 1:
            return math.inf if self.values[0] >= value else 0.0
        if all(each >= value for each in self.values):
            return math.inf
        # An interval at the end of the first period continues in the second.
        turns = 1 if math.isinf(self.period_s) else 2
        steps, at_s = list[tuple[float, float]](), begin_s
        for _ in range(turns):
            steps += self.changes(at_s)
            at_s += self.period_s
        longest_s, since_s = 0.0, math.inf
        for (step_s, found), (end_s, _) in pairwise([*steps, (at_s, 0.0)]):
            if found < value:
                since_s = math.inf
                continue
            since_s = min(since_s, step_s)
            longest_s = max(longest_s, end_s - since_s)
        return longest_s

    def falls(self, begin_s: float, end_s: float) -> int:
        """Count the decreases of the value after `begin_s` and up to `end_s`."""
        if len(self.values) == 1:
            return 0
        falls = sum(b < a for a, b in pairwise(self.values))
        first = self._step(begin_s)
        last = self._step(end_s)
        if not math.isinf(self.period_s):
            falls += self.values[0] < self.values[-1]
        return self._falls_before(*last, falls) - self._falls_before(*first, falls)

    def _falls_before(self, turn: int, step: int, each_turn: int) -> int:
        """Count the decreases up to the start of a step, without the one at time 0."""
        return turn * each_turn + sum(b < a for a, b in pairwise(self.values[: step + 1]))

    def shifted(self, by_s: float) -> "StepFunction":
        """Return the function on a clock that starts `by_s` later."""
        if len(self.values) == 1 or by_s == 0:
            return self
        times_s, values = [0.0], [self.at(by_s)]
        time_s = self.next_change_s(by_s)
        while time_s - by_s < self.period_s and not math.isinf(time_s):
            if time_s - by_s > times_s[-1]:
                times_s.append(time_s - by_s)
                values.append(self.at(time_s))
            time_s = self.next_change_s(time_s)
        return StepFunction(tuple(times_s), tuple(values), self.period_s)

    def _step(self, time_s: float) -> tuple[int, int]:
        """Return the number of completed periods at `time_s`, and the index of the step.

        The time is compared with the same sums that `next_change_s` returns. So rounding of a
        remainder cannot make a step start before or after its own time.
        """
        turn = 0
        if not math.isinf(self.period_s):
            turn = math.floor(time_s / self.period_s)
            turn -= self._start_s(turn) > time_s
            turn += self._start_s(turn + 1) <= time_s
        start_s = self._start_s(turn)
        # exact: the time is between one and two times the start, or the start is 0
        step = max(0, bisect_right(self.times_s, time_s - start_s) - 1)
        while step + 1 < len(self.times_s) and start_s + self.times_s[step + 1] <= time_s:
            step += 1
        return turn, step

    def _start_s(self, turn: int) -> float:
        return turn * self.period_s if turn else 0.0


HOUR_S = 3_600.0


class SourcedSteps(NamedTuple):
    """Step function with its source."""

    steps: StepFunction
    source: str


class StepsError(ValueError):
    """Error of a step function, with its place below the field: `(2, "from")`."""

    def __init__(self, message: str, place: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.place = place


class _Amount(NamedTuple):
    """Parser of one value, and the least value that it may have."""

    parse: Callable[[Any], Any]
    least: float = 0.0

    @property
    def what(self) -> str:
        return "number, 0 or more" if self.least == 0.0 else "number"


def budget_steps(value: Any, folder: Path | None = None) -> SourcedSteps:
    """Parse `4500 W`, `[{from: "18:00", value: 4 kW}, ...]`, or `{csv: FILE}` with hourly watts.

    Raises:
        StepsError: invalid value, with what to write instead.
    """
    return _steps(value, _Amount(watts), folder)


def price_steps(value: Any, folder: Path | None = None) -> SourcedSteps:
    """Parse a price per kilowatt-hour, in the same formats; below 0 the consumer is paid."""
    return _steps(value, _Amount(number, -math.inf), folder)


def carbon_steps(value: Any, folder: Path | None = None) -> SourcedSteps:
    """Parse grams per kilowatt-hour, in the same formats, or a country (annual mean)."""
    if value is False:
        raise StepsError("YAML reads NO as 'false'; for Norway write NOR")
    if isinstance(value, str) and not re.match(r"\s*[-+.\d]", value):
        try:
            entry = annual_intensity(value)
        except ConfigError as error:
            raise StepsError(str(error)) from None
        said = f"{entry.country}, mean of {entry.year} ({entry.source})"
        return SourcedSteps(StepFunction.constant(entry.g_co2e_per_kwh), said)
    return _steps(value, _Amount(number), folder)


def clock_s(value: Any) -> float:
    """Parse `18:00` or `18:00:30` as seconds after midnight.

    YAML reads 18:00 without quotes as 1,080, a number to base 60, which is accepted as well.

    Raises:
        StepsError: it is not a time of the day.
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


def _steps(value: Any, amount: _Amount, folder: Path | None) -> SourcedSteps:
    if isinstance(value, list):
        return SourcedSteps(_daily(value, amount), "stated, over the day")
    if isinstance(value, Mapping):
        return _hourly(value, amount, folder)
    return SourcedSteps(StepFunction.constant(_amount(value, amount)), "stated")


def _amount(value: Any, amount: _Amount, place: tuple[str | int, ...] = ()) -> float:
    try:
        found = amount.parse(value)
    except ValueError as error:
        raise StepsError(str(error), place) from None
    if not isinstance(found, int | float) or not math.isfinite(found) or found < amount.least:
        raise StepsError(f"must be a {amount.what}, not {value!r}", place)
    return float(found)


def _daily(items: list[Any], amount: _Amount) -> StepFunction:
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
        # before the first step of a day, the last step of the previous day holds
        found = {0.0: list(found.values())[-1], **found}
    if len(found) == 1:
        return StepFunction.constant(found[0.0])
    return StepFunction(tuple(found), tuple(found.values()), DAY_S)


def _hourly(value: Mapping[str, Any], amount: _Amount, folder: Path | None) -> SourcedSteps:
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
        return SourcedSteps(StepFunction.constant(values[0]), name)
    times_s = tuple(hour * HOUR_S for hour in range(len(values)))
    return SourcedSteps(
        StepFunction(times_s, tuple(values), len(values) * HOUR_S), f"{name}, hour by hour"
    )


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


def _cell(row: list[str], place: int, name: str, line: int, amount: _Amount) -> float:
    text = row[place].strip() if place < len(row) else ""
    try:
        return _amount(text, amount)
    except StepsError:
        said = f"{name}:{line}: {text!r} is not a {amount.what}"
        raise StepsError(said, ("csv",)) from None
