"""Samples of a run: compressed arrays per series and chunk of time, downsampled power curves."""

from __future__ import annotations

import math
import struct
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import le, sub
from typing import Any

from wattloop.core.errors import StoreError
from wattloop.core.records import HIGHEST_NODE_W, SLOW_SENSOR_S, counter_rise_j, highest_power_w
from wattloop.store.journal import SampleBlock

# Downsampled power curves over 1, 10 and 60 seconds: lowest, mean and highest, for drawing.
#
# Raw counters are joules that wrap; a curve shows watts. `watts` turns a domain's raw readings into
# power, `binned` and `coarser` summarise it. Levels are for display: they have 16 bits per value
# (1/65534 of the curve's range). Energy is never computed from them.

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


_CURVE_HEAD = struct.Struct(
    "<fIddd"
)  # level, points, first bin, lowest value, step of the 16-bit scale
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
    return _CURVE_HEAD.pack(curve.level_s, len(curve), first, low, step) + zlib.compress(body, 6)


def _code(steps: float) -> int:
    """Clamp: the mean of equal values may differ in its last bit, and fall below the lowest."""
    return min(max(0, round(steps)), _GAP - 1) if math.isfinite(steps) else _GAP


def unpack_curve(data: bytes) -> Curve:
    """Decode `pack_curve`, to 1/65534 of the curve's range."""
    level_s, count, first, low, step = _CURVE_HEAD.unpack_from(data)
    body = zlib.decompress(data[_CURVE_HEAD.size :])
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


# Lossless compression of doubles to a few bytes per value.
#
# Sensors count in decimal units (microjoules, milliwatts, percent), so their doubles are scaled
# integers. `pack` finds the decimal scale that reproduces every double exactly, takes first or
# second differences (a counter under steady load, a clock), and compresses byte planes. Values
# without such a scale are compressed as they are. NaN marks a gap and is preserved.
#
# Sizes are measured by `benchmarks/store_size.py`; `docs/store.md` lists the alternatives tried.
_HEAD = struct.Struct("<BBBII")  # codec, order of differences, decimals, values, gaps
_PLAIN, _PLANES, _DIVIDE, _MULTIPLY = range(4)
_SCALES = (0, 1, 2, 3, 4, 6, 9)
_LIMIT = 2**53  # larger integers are not exact in a double
_LEVEL = 6


def pack(values: Sequence[float]) -> bytes:
    """Compress `values`; `unpack` returns exactly the same doubles."""
    filled, gaps = _without_gaps(values)
    found = _as_integers(filled)
    if found is None:
        codec, body = _smallest_raw(filled)
        order = decimals = 0
    else:
        codec, decimals, integers = found
        order, body = _differences(integers)
    head = _HEAD.pack(codec, order, decimals, len(filled), len(gaps) // 2)
    return head + gaps.tobytes() + zlib.compress(body, _LEVEL)


def unpack(data: bytes) -> array[float]:
    try:
        codec, order, decimals, count, gap_count = _HEAD.unpack_from(data)
        gaps: array[int] = array("I")
        split = _HEAD.size + 2 * gap_count * gaps.itemsize
        gaps.frombytes(data[_HEAD.size : split])
        body = zlib.decompress(data[split:])
    except (struct.error, zlib.error, ValueError) as error:
        raise StoreError(
            f"a chunk of samples is damaged ({error}); the run's totals are kept apart from it "
            "and still valid, export them with: wattloop runs export RUN --what runs"
        ) from error
    values = _decoded(codec, order, decimals, count, body)
    for begin, length in zip(gaps[::2], gaps[1::2], strict=True):
        values[begin : begin + length] = array("d", [float("nan")]) * length
    return values


def _decoded(codec: int, order: int, decimals: int, count: int, body: bytes) -> array[float]:
    values: array[float] = array("d")
    if codec == _PLAIN:
        values.frombytes(body)
        return values
    if codec == _PLANES:
        values.frombytes(_from_planes(body))
        return values
    coded: array[int] = array("q")
    coded.frombytes(_from_planes(body))
    integers: Iterable[int] = [(z >> 1) ^ -(z & 1) for z in coded]
    for _ in range(order):
        integers = accumulate(integers)
    if codec == _MULTIPLY:
        step = 10.0**-decimals
        return array("d", [i * step for i in integers])
    scale = 10.0**decimals
    return array("d", [i / scale for i in integers])


def _without_gaps(values: Sequence[float]) -> tuple[array[float], array[int]]:
    """Return values with NaN replaced by the last good one, and (begin, length) of each gap."""
    filled = array("d", values)
    gaps: array[int] = array("I")
    if not math.isnan(sum(filled)):
        return filled, gaps
    last = next((v for v in filled if not math.isnan(v)), 0.0)
    previous = -2
    for i, value in enumerate(filled):
        if not math.isnan(value):
            last = value
            continue
        filled[i] = last
        if i == previous + 1:
            gaps[-1] += 1
        else:
            gaps.extend((i, 1))
        previous = i
    return filled, gaps


def _as_integers(values: array[float]) -> tuple[int, int, list[int]] | None:
    """Return (codec, decimals, integers) that reproduce every double exactly, if possible."""
    for decimals in _SCALES:
        scale, step = 10.0**decimals, 10.0**-decimals
        for codec in (_DIVIDE, _MULTIPLY):
            for part in (values[:64], values):  # most wrong scales fail within a few values
                try:
                    integers = [round(v * scale) for v in part]
                except (OverflowError, ValueError):  # infinities
                    return None
                back = (
                    [i / scale for i in integers]
                    if codec == _DIVIDE
                    else [i * step for i in integers]
                )
                if array("d", back).tobytes() != part.tobytes():
                    break
            else:
                if any(
                    abs(i) >= _LIMIT for i in (max(integers, default=0), min(integers, default=0))
                ):
                    return None
                return codec, decimals, integers
    return None


def _differences(integers: list[int]) -> tuple[int, bytes]:
    """Return (order, byte planes) of the differences of the order that makes them smallest."""
    best_order, best = 0, integers
    current = integers
    for order in (1, 2):
        current = [*current[:1], *map(sub, current[1:], current)]
        # the first difference is the absolute value and does not count
        if sum(map(abs, current[2:])) < sum(map(abs, best[2:])):
            best_order, best = order, current
    # zigzag: small negative numbers become small positive ones, so high bytes stay zero
    return best_order, _planes(array("q", [(d << 1) ^ (d >> 63) for d in best]).tobytes())


def _smallest_raw(values: array[float]) -> tuple[int, bytes]:
    data = values.tobytes()
    planes = _planes(data)
    if len(zlib.compress(planes, 1)) < len(zlib.compress(data, 1)):
        return _PLANES, planes
    return _PLAIN, data


def _planes(data: bytes) -> bytes:
    """Return all first bytes, then all second bytes, ...: the high ones are nearly constant."""
    return b"".join(data[i::8] for i in range(8))


def _from_planes(planes: bytes) -> bytes:
    count = len(planes) // 8
    data = bytearray(len(planes))
    for i in range(8):
        data[i::8] = planes[i * count : (i + 1) * count]
    return bytes(data)


SIGNALS_FROM = 1_000
"""Stream N + 1000 of a journal holds the signals of stream N."""


@dataclass(frozen=True, slots=True)
class Series:
    """One domain or signal of one meter, as a run recorded it."""

    feed: int
    column: int
    name: str
    kind: str
    """`counter` (joules), `gauge` (watts) or `signal`."""
    unit: str
    meter: str
    wrap_j: float | None = None
    highest_w: float = HIGHEST_NODE_W
    """Above what the domain can draw."""

    def watts(self, times_s: Sequence[float], raw: Sequence[float]) -> array[float]:
        counter = self.kind == "counter"
        return watts(times_s, raw, counter=counter, wrap_j=self.wrap_j, highest_w=self.highest_w)


def series_of(feeds: Sequence[Mapping[str, Any]]) -> list[Series]:
    found = []
    for feed, description in enumerate(feeds):
        meter = str(description.get("meter", ""))
        for column, domain in enumerate(description.get("domains", ())):
            kind = str(domain["kind"])
            unit = "J" if kind == "counter" else "W"
            found.append(
                Series(
                    *(feed, column, domain["name"], kind, unit, meter),
                    wrap_j=domain.get("wrap_j"),
                    highest_w=domain.get("max_power_w") or highest_power_w(domain["name"]),
                )
            )
        for column, signal in enumerate(description.get("signals", ())):
            found.append(
                Series(feed + SIGNALS_FROM, column, signal["name"], "signal", signal["unit"], meter)
            )
    return found


def power_series(feeds: Sequence[Mapping[str, Any]]) -> dict[str, Series]:
    """Return domain -> the series of its power, chosen as `measure` chooses its sources.

    The first meter that offers a domain was used; another one was not even read (an estimate next
    to RAPL). A gauge that gives a slow counter of the same provenance its shape is drawn instead
    of it: it needs no difference.
    """
    found: dict[str, tuple[Series, Mapping[str, Any]]] = {}
    for series in series_of(feeds):
        if series.kind == "signal":
            continue
        domain = feeds[series.feed]["domains"][series.column]
        present = found.get(series.name)
        if present is None or (
            series.kind == "gauge"
            and present[0].kind == "counter"
            and float(present[1].get("update_period_s") or 0.0) >= SLOW_SENSOR_S
            and domain.get("provenance") == present[1].get("provenance")
        ):
            found[series.name] = (series, domain)
    return {name: series for name, (series, _) in found.items()}


def find_series(feeds: Sequence[Mapping[str, Any]], name: str) -> Series:
    known = series_of(feeds)
    for series in known:
        if series.name == name:
            return series
    names = ", ".join(series.name for series in known) or "none at all"
    raise StoreError(f"this run has no samples of {name!r}; it has {names}")


# Storage of samples: packed arrays per series and chunk of time.
#
# The domains (and signals) of one meter are read together, so they share one array of times. Times
# have microsecond resolution, values are exact. `sample_levels` holds the power over 1, 10 and 60
# seconds, so that drawing a day does not read the samples at all.
PART_LENGTH = 32_768
"""Samples per chunk: long enough to compress well, short enough to open a part of a run."""
TIMES = -1
"""Series of the times that all series of a stream share."""


def pack_samples(
    run_id: str, feeds: Sequence[Mapping[str, Any]], blocks: Iterable[SampleBlock]
) -> dict[str, list[dict[str, Any]]]:
    """Pack all readings of a run as rows by table, ready to be inserted: packing takes longer than
    a lock should be held. Blocks without a stream description are left out.
    """
    described: dict[int, list[Series]] = {}
    for series in series_of(feeds):
        described.setdefault(series.feed, []).append(series)
    gathered: dict[int, tuple[array[float], array[float]]] = {}
    for block in blocks:
        width = len(described.get(block.feed, ()))
        if width == 0 or width != block.width or len(block.values) != width * len(block.times_s):
            continue  # the meaning of these numbers is unknown
        times_s, values = gathered.setdefault(block.feed, (array("d"), array("d")))
        times_s.extend(block.times_s)
        values.extend(block.values)
    chunks: list[dict[str, Any]] = []
    levels: list[dict[str, Any]] = []
    for feed, (times_s, values) in gathered.items():
        width = len(described[feed])
        moments_s, columns = _in_order(times_s, [values[i::width] for i in range(width)])
        rounded_s = array("d", [round(t * 1e6) / 1e6 for t in moments_s])
        chunks.extend(_chunk_rows(run_id, feed, rounded_s, columns))
        for series, column in zip(described[feed], columns, strict=True):
            levels.extend(_level_rows(run_id, series, rounded_s, column))
    return {"sample_chunks": chunks, "sample_levels": levels}


def _chunk_rows(
    run_id: str, feed: int, times_s: array[float], columns: Sequence[array[float]]
) -> Iterator[dict[str, Any]]:
    for part, begin in enumerate(range(0, len(times_s), PART_LENGTH)):
        stretch = slice(begin, begin + PART_LENGTH)
        moments_s = times_s[stretch]
        for series, values in ((TIMES, times_s), *enumerate(columns)):
            yield {
                "run_id": run_id,
                "feed": feed,
                "part": part,
                "series": series,
                "begin_s": moments_s[0],
                "end_s": moments_s[-1],
                "count": len(moments_s),
                "payload": pack(values[stretch]),
            }


def _level_rows(
    run_id: str, series: Series, times_s: array[float], raw: array[float]
) -> Iterator[dict[str, Any]]:
    values = series.watts(times_s, raw)
    finest: Curve | None = None
    for level_s in LEVELS_S:
        curve = binned(times_s, values, level_s) if finest is None else coarser(finest, level_s)
        if 2 * len(curve) > len(times_s if finest is None else finest):
            continue  # hardly shorter than the samples
        finest = curve
        for part, begin in enumerate(range(0, len(curve), PART_LENGTH)):
            points = curve.part(begin, begin + PART_LENGTH)
            yield {
                "run_id": run_id,
                "feed": series.feed,
                "series": series.column,
                "level_s": level_s,
                "part": part,
                "begin_s": points.times_s[0] - level_s / 2,
                "end_s": points.times_s[-1] + level_s / 2,
                "count": len(points),
                "payload": pack_curve(points),
            }


def _in_order(
    times_s: array[float], columns: list[array[float]]
) -> tuple[array[float], list[array[float]]]:
    """Sort readings by time: threads that close windows may append slightly out of order."""
    if all(map(le, times_s, times_s[1:])):
        return times_s, columns
    order = sorted(range(len(times_s)), key=times_s.__getitem__)
    return (
        array("d", [times_s[i] for i in order]),
        [array("d", [column[i] for i in order]) for column in columns],
    )
