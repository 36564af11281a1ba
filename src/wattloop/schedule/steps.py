"""A figure that changes at known times: a power budget, a price, a carbon intensity."""

import math
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["DAY_S", "Steps"]

DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Steps:
    """Constant between the given times; repeats after `period_s` when that is finite.

    Attributes:
        times_s: when each value begins, ascending, the first one 0.
        values: as many.
        period_s: after which it begins again, such as a day.
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
    def constant(cls, value: float) -> "Steps":
        """The same at all times."""
        return cls((0.0,), (value,))

    def at(self, time_s: float) -> float:
        """The value at a time; at a change, the new one."""
        if len(self.values) == 1:
            return self.values[0]
        return self.values[self._step(time_s)[1]]

    def next_change_s(self, time_s: float) -> float:
        """When the next step begins, after `time_s`; infinite when there is none."""
        if len(self.values) == 1:
            return math.inf
        turn, step = self._step(time_s)
        if step + 1 < len(self.times_s):
            return self._start_s(turn) + self.times_s[step + 1]
        return self._start_s(turn + 1)

    def mean(self) -> float:
        """Over a period; where it does not repeat, of the values as they stand."""
        if math.isinf(self.period_s):
            return sum(self.values) / len(self.values)
        ends_s = (*self.times_s[1:], self.period_s)
        spans_s = (end_s - begin_s for begin_s, end_s in zip(self.times_s, ends_s, strict=True))
        parts = (value * span_s for value, span_s in zip(self.values, spans_s, strict=True))
        return sum(parts) / self.period_s

    def least(self, begin_s: float, end_s: float) -> float:
        """The least value between two times, both ends included."""
        found, time_s = self.at(begin_s), self.next_change_s(begin_s)
        end_s = min(end_s, begin_s + self.period_s)  # after that it has seen them all
        while time_s <= end_s and not math.isinf(time_s):
            found = min(found, self.at(time_s))
            time_s = self.next_change_s(time_s)
        return found

    def shifted(self, by_s: float) -> "Steps":
        """The same, seen by a clock that starts `by_s` later."""
        if len(self.values) == 1 or by_s == 0:
            return self
        times_s, values = [0.0], [self.at(by_s)]
        time_s = self.next_change_s(by_s)
        while time_s - by_s < self.period_s and not math.isinf(time_s):
            if time_s - by_s > times_s[-1]:
                times_s.append(time_s - by_s)
                values.append(self.at(time_s))
            time_s = self.next_change_s(time_s)
        return Steps(tuple(times_s), tuple(values), self.period_s)

    def _step(self, time_s: float) -> tuple[int, int]:
        """How many periods are over at `time_s`, and the number of the step.

        The time is compared with the very sums that `next_change_s` gives: whatever floats do to
        a remainder, a step has begun when its time has come, and the next one is later.
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
        """When a period begins."""
        return turn * self.period_s if turn else 0.0
