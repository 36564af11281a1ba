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

    def changes(self, begin_s: float) -> list[tuple[float, float]]:
        """(time, value) of every step from `begin_s` on, the present one first, for a period."""
        found = [(begin_s, self.at(begin_s))]
        time_s = self.next_change_s(begin_s)
        while time_s <= begin_s + self.period_s and not math.isinf(time_s):
            found.append((time_s, self.at(time_s)))
            time_s = self.next_change_s(time_s)
        return found

    def longest_s(self, begin_s: float, value: float) -> float:
        """The longest time without a break, from `begin_s` on, with at least this value."""
        if len(self.values) == 1:
            return math.inf if self.values[0] >= value else 0.0
        if all(each >= value for each in self.values):
            return math.inf
        # A time that ends with the first period goes on in the second.
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
        """How often the value becomes less after `begin_s` and up to `end_s`."""
        if len(self.values) == 1:
            return 0
        falls = sum(b < a for a, b in pairwise(self.values))
        first = self._step(begin_s)
        last = self._step(end_s)
        if not math.isinf(self.period_s):
            falls += self.values[0] < self.values[-1]
        return self._falls_before(*last, falls) - self._falls_before(*first, falls)

    def _falls_before(self, turn: int, step: int, each_turn: int) -> int:
        """Falls up to the beginning of a step, not counting the one with which time begins."""
        return turn * each_turn + sum(b < a for a, b in pairwise(self.values[: step + 1]))

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
