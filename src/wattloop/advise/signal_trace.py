"""A value over time as the store has it, for the rules. Standard library only."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple


class TraceInterval(NamedTuple):
    """From one moment to another, in seconds since the run began."""

    begin_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        return max(0.0, self.end_s - self.begin_s)


class SignalTrace(NamedTuple):
    """Readings in the order of their times; each holds half-way to its neighbours.

    Times are seconds since the run began. What could not be read is not in it.
    """

    times_s: tuple[float, ...]
    values: tuple[float, ...]

    @classmethod
    def of(
        cls, times_s: Sequence[float], values: Sequence[float], begin_s: float = 0.0
    ) -> "SignalTrace":
        """Without gaps, and without times that went backwards."""
        kept_s: list[float] = []
        kept: list[float] = []
        for time_s, value in zip(times_s, values, strict=True):
            if math.isfinite(value) and (not kept_s or time_s - begin_s > kept_s[-1]):
                kept_s.append(time_s - begin_s)
                kept.append(value)
        return cls(tuple(kept_s), tuple(kept))

    def within(self, span: TraceInterval) -> "SignalTrace":
        low = bisect_left(self.times_s, span.begin_s)
        high = bisect_right(self.times_s, span.end_s)
        return SignalTrace(self.times_s[low:high], self.values[low:high])

    def mean(self) -> float | None:
        """Each value weighted with the time it holds."""
        weights = self._weights()
        total_s = sum(weights)
        if not self.values:
            return None
        if total_s <= 0:
            return self.values[-1]
        return sum(w * v for w, v in zip(weights, self.values, strict=True)) / total_s

    def quantile(self, share: float) -> float | None:
        """The value that this share of the readings does not exceed."""
        ordered = sorted(self.values)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None

    def where(
        self, holds: Callable[[float], bool], end_s: float | None = None
    ) -> list[TraceInterval]:
        """The stretches in which every reading holds."""
        return list(self._stretches(holds, end_s))

    def _stretches(
        self, holds: Callable[[float], bool], end_s: float | None
    ) -> Iterator[TraceInterval]:
        times_s, last = self.times_s, len(self.times_s) - 1
        begin: int | None = None
        for place, value in enumerate(self.values):
            if holds(value):
                begin = place if begin is None else begin
                if place < last:
                    continue
                until_s = times_s[last] if end_s is None else max(end_s, times_s[last])
            elif begin is None:
                continue
            else:
                until_s = times_s[place]
            assert begin is not None
            yield TraceInterval(times_s[begin], until_s)
            begin = None

    def _weights(self) -> list[float]:
        times_s = self.times_s
        if len(times_s) < 2:
            return [1.0] * len(times_s)
        halves = [(b - a) / 2 for a, b in pairwise(times_s)]
        return [a + b for a, b in zip([0.0, *halves], [*halves, 0.0], strict=True)]
