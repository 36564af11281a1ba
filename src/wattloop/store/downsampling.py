"""Downsampled power curves over 1, 10 and 60 seconds: lowest, mean and highest, for drawing.

Raw counters are joules that wrap; a curve shows watts. `watts` turns a domain's raw readings
into
power, `binned` and `coarser` summarise it. Levels are for display: they have 16 bits per
value (1/65534 of the curve's range). Energy is never computed from them.
"""

from __future__ import annotations

import math
import struct
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import sub

from wattloop.core.records import counter_rise_j

LEVELS_S = (1, 10, 60)
"""Widths of the bins, in seconds; each divides the next."""


@dataclass(slots=True)
class Curve:
    """Points to draw. `times_s` are the middles of bins of `level_s`; 0 means single samples.

    NaN marks a gap.
    """

    level_s: float
    times_s: array[float] = field(default_factory=lambda: array("d"))
    lowest: array[float] = field(default_factory=lambda: array("d"))
    mean: array[float] = field(default_factory=lambda: array("d"))
    highest: array[float] = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.times_s)

    def add(self, time_s: float, lowest: float, mean: float, highest: float) -> None:
        self.times_s.append(time_s)
        self.lowest.append(lowest)
        self.mean.append(mean)
        self.highest.append(highest)

    def part(self, low: int, high: int) -> Curve:
        """Return the points from number `low` up to, not including, `high`."""
        piece = slice(low, high)
        return Curve(
            self.level_s,
            self.times_s[piece],
            self.lowest[piece],
            self.mean[piece],
            self.highest[piece],
        )

    def extend(self, other: Curve) -> None:
        """Append all points of `other`."""
        self.times_s.extend(other.times_s)
        self.lowest.extend(other.lowest)
        self.mean.extend(other.mean)
        self.highest.extend(other.highest)


def watts(
    times_s: Sequence[float],
    raw: Sequence[float],
    *,
    counter: bool,
    wrap_j: float | None = None,
    highest_w: float = 0.0,
) -> array[float]:
    """Power at each reading: the reading itself, or the rise of the counter since the last one.

    NaN marks readings whose power is unknown: the first one of a counter, one after a reset, and
    one after a gap so long that the counter can have wrapped once more at `highest_w`.
    """
    if not counter:
        return array("d", raw)
    power_w = array("d", [math.nan] * min(1, len(raw)))
    for rise_j, step_s in zip(map(sub, raw[1:], raw), map(sub, times_s[1:], times_s), strict=True):
        counted_j = counter_rise_j(rise_j, step_s, wrap_j)
        again_j = math.inf if wrap_j is None or counted_j is None else counted_j + wrap_j
        if counted_j is None or step_s <= 0 or again_j <= highest_w * step_s:
            power_w.append(math.nan)
        else:
            power_w.append(counted_j / step_s)
    return power_w


def binned(times_s: Sequence[float], values: Sequence[float], level_s: float) -> Curve:
    """Return lowest, mean and highest of the values in each bin of `level_s` seconds."""
    curve = Curve(level_s)
    begin, count = 0, len(times_s)
    while begin < count:
        number = math.floor(times_s[begin] / level_s)
        end = bisect_left(times_s, (number + 1) * level_s, begin)
        end = max(end, begin + 1)  # equal times must not stop the loop
        part = values[begin:end]
        total = sum(part)
        if math.isnan(total):  # gaps in this bin
            part = [v for v in part if not math.isnan(v)]
            total = sum(part)
        middle_s = (number + 0.5) * level_s
        if part:
            curve.add(middle_s, min(part), total / len(part), max(part))
        else:
            curve.add(middle_s, math.nan, math.nan, math.nan)
        begin = end
    return curve


def coarser(curve: Curve, level_s: float) -> Curve:
    """Return the same curve with wider bins."""
    result = Curve(level_s)
    mean = binned(curve.times_s, curve.mean, level_s)
    lowest = binned(curve.times_s, curve.lowest, level_s)
    highest = binned(curve.times_s, curve.highest, level_s)
    for i, time_s in enumerate(mean.times_s):
        result.add(time_s, lowest.lowest[i], mean.mean[i], highest.highest[i])
    return result


_HEAD = struct.Struct("<fIddd")  # level, points, first bin, lowest value, step of the 16-bit scale
_GAP = 65_535


def pack_curve(curve: Curve) -> bytes:
    """Encode a curve in about four bytes per point."""
    finite = [v for part in (curve.lowest, curve.highest) for v in part if math.isfinite(v)]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    step = (high - low) / (_GAP - 1) or 1.0
    first = math.floor(curve.times_s[0] / curve.level_s) if curve.times_s else 0
    bins = array("I", [math.floor(t / curve.level_s) - first for t in curve.times_s])
    body = array("I", map(sub, bins, [0, *bins])).tobytes()
    for part in (curve.lowest, curve.mean, curve.highest):
        codes = array("H", [_code((v - low) / step) for v in part])
        data = codes.tobytes()
        body += data[::2] + data[1::2]
    return _HEAD.pack(curve.level_s, len(curve), first, low, step) + zlib.compress(body, 6)


def _code(steps: float) -> int:
    """Clamp: the mean of equal values may differ in its last bit, and fall below the lowest."""
    return min(max(0, round(steps)), _GAP - 1) if math.isfinite(steps) else _GAP


def unpack_curve(data: bytes) -> Curve:
    """Decode `pack_curve`, to 1/65534 of the curve's range."""
    level_s, count, first, low, step = _HEAD.unpack_from(data)
    body = zlib.decompress(data[_HEAD.size :])
    steps: array[int] = array("I")
    steps.frombytes(body[: 4 * count])
    curve = Curve(level_s)
    number = int(first)
    for width in steps:
        number += width
        curve.times_s.append((number + 0.5) * level_s)
    for i, part in enumerate((curve.lowest, curve.mean, curve.highest)):
        data = body[4 * count + 2 * i * count : 4 * count + 2 * (i + 1) * count]
        plain = bytearray(2 * count)
        plain[::2], plain[1::2] = data[:count], data[count:]
        codes: array[int] = array("H")
        codes.frombytes(bytes(plain))
        part.extend([math.nan if c == _GAP else low + c * step for c in codes])
    return curve
