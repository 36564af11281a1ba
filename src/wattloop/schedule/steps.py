"""A figure that changes at known times: a power budget, a price, a carbon intensity."""

import math
from bisect import bisect_right
from dataclasses import dataclass

__all__ = ["Steps"]


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

    @classmethod
    def constant(cls, value: float) -> "Steps":
        """The same at all times."""
        return cls((0.0,), (value,))

    def at(self, time_s: float) -> float:
        """The value at a time; at a change, the new one."""
        phase_s = time_s if math.isinf(self.period_s) else time_s % self.period_s
        return self.values[bisect_right(self.times_s, phase_s) - 1]

    def next_change_s(self, time_s: float) -> float:
        """When it changes next, after `time_s`; infinite when never."""
        if math.isinf(self.period_s):
            following = bisect_right(self.times_s, time_s)
            return self.times_s[following] if following < len(self.times_s) else math.inf
        if len(self.times_s) == 1:
            return math.inf
        turn, phase_s = divmod(time_s, self.period_s)
        following = bisect_right(self.times_s, phase_s)
        start_s = turn * self.period_s
        if following < len(self.times_s):
            return start_s + self.times_s[following]
        return start_s + self.period_s

    def least(self, begin_s: float, end_s: float) -> float:
        """The least value between two times, both ends included."""
        found, time_s = self.at(begin_s), self.next_change_s(begin_s)
        while time_s <= end_s:
            found = min(found, self.at(time_s))
            time_s = self.next_change_s(time_s)
        return found
