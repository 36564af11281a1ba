"""Phases of a run from GPU signals alone, for programs whose steps no hook sees: C++, plain JAX.

Two observations separate the phases, both from NVML:

- A GPU that pauses draws its idle power.
- Memory traffic per busy time, `r = memory_utilisation / utilisation`, depends on the kernels that
  run and not on how often the host launches them. A training step has one value of `r`. An
  evaluation, which lacks the backward pass and the optimizer, has another.

The results are inferred: "main work" is what the GPU did most of the time, "other work" is work
with another `r`.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from wattloop.integrations.run_phases import (
    Span,
    StepTotals,
    drawn_spans,
    merge,
    phase_energies,
    subtract,
)

if TYPE_CHECKING:
    from wattloop.measure.meter_stream import DomainSource, MeterStream
    from wattloop.measure.session import Session

SHORTEST_S = 0.35
"""Shortest pause or other work that is reported: half a second, less the blur of both edges."""
IDLE_BUSY = 0.02
"""Utilisation of a GPU without work; NVML counts in per cent."""
PAUSED_BELOW = 0.3
"""Part of the way from idle power to the power of work, below which the GPU pauses: nearer to idle
than to work, because work that waits for the host between kernels draws less than its usual power.
"""
ENOUGH_REST_S = 1.0
"""Rest between works that shows the idle power of a GPU that is open."""
SMOOTHED_S = 0.4
"""Two updates of NVML's utilisation, which has a period of 0.2 s on an H200. One update may see the
parts of a long step unevenly.
"""
LARGEST_GAP_S = 0.25
"""Readings further apart than this miss updates: only pauses are found in them."""
LAG_S = 0.1
"""Utilisation is a mean over the period before it is read; this is the mean age of a reading."""
DEVIATION = 4.0
"""Standard deviations of `r` between main and other work. Normal noise exceeds it once in 16,000
readings; the smoothed ones of an hour are 9,000 independent ones.
"""
LEAST_DEVIATION = 0.015
"""Of the usual `r`: standard deviation that is assumed at least."""
QUANTUM = 0.01
"""NVML's utilisations are whole per cents."""
LEAST_BUSY = 0.05
"""Below this utilisation the quotient `r` is rounding noise."""
LOOP_S = 2.0
"""Other work that comes back more often than this is a part of the main loop: a forward pass, an
optimizer, an exchange of gradients.
"""
SUSTAINED_S = 2.0
"""Start-up ends with the first work that lasts this long; shorter work before it prepares."""
BLOCK_S, CONTEXT_S = 600.0, 30.0
"""Readings of so many seconds are judged together, and of so many before them once more. The main
work of the run is known at its end."""


class SignalReading(NamedTuple):
    """Readings of the GPUs of a run at one moment.

    Attributes:
        time_s: on the machine's monotonic clock.
        power_w: mean power since the last reading, of all GPUs.
        busy: utilisation, as a mean over the GPUs.
        memory_busy: memory utilisation in the same way; NaN where it cannot be read.
    """

    time_s: float
    power_w: float
    busy: float
    memory_busy: float


def find_pauses(readings: Sequence[SignalReading]) -> list[Span]:
    """Return the times in which the GPU had no work for `SHORTEST_S` or longer.

    A run without any rest has no pauses.
    """
    works_w = [reading.power_w for reading in readings if reading.busy > IDLE_BUSY]
    if not works_w:
        return [(readings[0].time_s, readings[-1].time_s)] if len(readings) > 1 else []
    idle_w = _idle_power_w(readings)
    if idle_w is None:
        return []
    limit_w = idle_w + PAUSED_BELOW * (median(works_w) - idle_w)
    if limit_w <= idle_w:  # work that draws no power cannot be told from a pause
        return []
    begins_s = [readings[0].time_s, *(reading.time_s for reading in readings[:-1])]
    spans = [
        (begin_s, reading.time_s)
        for begin_s, reading in zip(begins_s, readings, strict=True)
        if reading.power_w < limit_w
    ]
    return [span for span in merge(spans) if span[1] - span[0] >= SHORTEST_S]


def _idle_power_w(readings: Sequence[SignalReading]) -> float | None:
    """Return the power of a GPU that rests; None if it never does.

    A GPU that a program has opened draws more without work than before: 122 W instead of 79 W on
    an H200. Rests between two works count first.
    """
    working = [i for i, reading in enumerate(readings) if reading.busy > IDLE_BUSY]
    inside = readings[working[0] : working[-1]]
    gap_s = _usual_gap_s([reading.time_s for reading in readings])
    for part in (inside, readings):
        rests_w = sorted(reading.power_w for reading in part if reading.busy <= IDLE_BUSY)
        if len(rests_w) * gap_s >= ENOUGH_REST_S or (part is readings and rests_w):
            # The lower ones: utilisation lags, and the first power of work has none yet.
            return rests_w[len(rests_w) // 4]
    return None


def find_other_work(readings: Sequence[SignalReading], pauses: Sequence[Span]) -> list[Span]:
    """Return the times in which work differs from that of most readings in memory traffic.

    Readings next to a pause mix both and are left out.
    """
    known = _work_level(readings, pauses)
    if known is None:
        return []
    working, times_s, ratios, usual, deviation = known
    found: list[Span] = []
    for low, high in _deviating(times_s, ratios, usual, DEVIATION * deviation):
        begin_s, end_s = _edges(working, times_s, low, high, usual)
        if end_s - begin_s >= SHORTEST_S:
            found.append((begin_s - LAG_S, end_s - LAG_S))
    if len(found) > max(1.0, (times_s[-1] - times_s[0]) / LOOP_S):
        return []
    return subtract(merge(found), pauses)


class _WorkLevel(NamedTuple):
    """Readings of work with their smoothed `r`, its usual value and its standard deviation."""

    working: list[SignalReading]
    times_s: list[float]
    ratios: list[float]
    usual: float
    deviation: float


def _work_level(readings: Sequence[SignalReading], pauses: Sequence[Span]) -> _WorkLevel | None:
    near = [(a - LAG_S, b + 2 * LAG_S) for a, b in pauses]
    working = [
        reading
        for reading in readings
        if reading.busy >= LEAST_BUSY
        and not math.isnan(reading.memory_busy)
        and not any(a <= reading.time_s <= b for a, b in _around(near, reading.time_s))
    ]
    times_s = [reading.time_s for reading in working]
    if len(working) < SMOOTHED_S / LARGEST_GAP_S or _usual_gap_s(times_s) > LARGEST_GAP_S:
        return None
    ratios = [_ratio(working, times_s, reading.time_s) for reading in working]
    usual = median(ratios)
    busy = median(reading.busy for reading in working)
    deviation = max(
        1.4826 * median(abs(ratio - usual) for ratio in ratios),
        LEAST_DEVIATION * usual,
        QUANTUM / math.sqrt(12) * math.hypot(1.0, usual) / busy,
    )
    return _WorkLevel(working, times_s, ratios, usual, deviation)


def split_by_signals(readings: Sequence[SignalReading]) -> dict[str, list[Span]]:
    """Return the pauses and other work between the first and the last sustained work.

    The key "work" has one span, from that first to that last work; it is missing without any.
    """
    if len(readings) < 3:
        return {}
    pauses = find_pauses(readings)
    work = subtract([(readings[0].time_s, readings[-1].time_s)], pauses)
    sustained = [(a, b) for a, b in work if b - a >= SUSTAINED_S]
    if not sustained:
        return {}
    whole = (sustained[0][0], sustained[-1][1])
    inside = [r for r in readings if whole[0] <= r.time_s <= whole[1]]
    pauses = [(a, b) for a, b in pauses if a >= whole[0] and b <= whole[1]]
    other = find_other_work(inside, pauses)
    pauses, other = _begun_by_pauses(pauses, other)
    return {"work": [whole], "pause": pauses, "other work": other}


class SignalRecorder:
    """Readings of the GPUs of a run while it runs, judged block by block."""

    def __init__(self, session: Session, feed: MeterStream, gpus: Sequence[DomainSource]) -> None:
        self._session = session
        self._feed = feed
        self._gpus = gpus
        names = [signal.name for signal in feed.signals]
        self._busy = [names.index(f"{gpu.domain.name}/utilisation") for gpu in gpus]
        self._memory = [
            names.index(name) if (name := f"{gpu.domain.name}/memory_utilisation") in names else -1
            for gpu in gpus
        ]
        self._read: array[float] = array("d")
        """Time, utilisation and memory utilisation of each reading, not joined with power yet."""
        self._readings: list[SignalReading] = []
        self._blocks: list[_Block] = []
        feed.on_signals = self._take

    @classmethod
    def of(cls, session: Session) -> SignalRecorder | None:
        """Return a recorder for the GPUs of the run; None where no utilisation can be read."""
        for feed in session.feeds:
            names = {signal.name for signal in feed.signals}
            gpus = [c for c in session.channels if f"{c.domain.name}/utilisation" in names]
            if gpus:
                return cls(session, feed, gpus)
        return None

    def stop(self) -> None:
        """Record nothing more: the steps of the program are known."""
        self._feed.on_signals = None

    def update(self, until_s: float) -> None:
        """Join readings up to `until_s` with their power, and judge complete blocks."""
        while len(self._read) >= 6 and self._read[3] <= until_s:
            begin_s, end_s, busy, memory_busy = self._read[0], *self._read[3:6]
            del self._read[:3]
            spans = [gpu.between(begin_s, end_s) for gpu in self._gpus]
            if end_s > begin_s and all(span is not None for span in spans):
                power_w = sum(s.energy_j for s in spans if s is not None) / (end_s - begin_s)
                self._readings.append(SignalReading(end_s, power_w, busy, memory_busy))
        if self._readings and self._readings[-1].time_s - self._readings[0].time_s >= BLOCK_S:
            self._judge()
            newest_s = self._readings[-1].time_s
            self._readings = [r for r in self._readings if r.time_s >= newest_s - CONTEXT_S]

    def finish(self, compilations: Sequence[Span] = ()) -> StepTotals | None:
        """Return the phases of the ended run; None where the GPUs did nothing.

        Args:
            compilations: as the program's framework reports them.
        """
        self.stop()
        session = self._session
        assert session.ended_s is not None
        run = (session.started_s, session.ended_s)
        self.update(run[1])
        self._judge()
        if not self._blocks:
            return None
        work, found = _joined(self._blocks)
        parts = _parts(run, work, found, compilations)

        def energy_j(begin_s: float, end_s: float) -> float | None:
            return session.between(begin_s, end_s).energy_j

        phases = phase_energies(parts, energy_j, energy_j(*run), rest="main work")
        totals = StepTotals(0, phases=tuple(phases), inferred=True)
        event = {"type": "phases", "time_s": run[1], "spans": drawn_spans(parts)}
        session.record(event | totals.to_dict())
        return totals

    def _take(self, time_s: float, values: Sequence[float]) -> None:
        """Take in signals, in the sampler's thread."""
        busy = [values[i] for i in self._busy]
        memory = [values[i] if i >= 0 else math.nan for i in self._memory]
        if not any(map(math.isnan, busy)):
            self._read.extend((time_s, sum(busy) / len(busy), sum(memory) / len(memory)))

    def _judge(self) -> None:
        found = split_by_signals(self._readings)
        if found:
            level = _work_level(self._readings, found["pause"])
            known = (math.nan, math.nan) if level is None else (level.usual, level.deviation)
            self._blocks.append(
                _Block(found["work"][0], found["pause"], found["other work"], *known)
            )


class _Block(NamedTuple):
    """What was found in the readings that were judged together.

    Attributes:
        usual: `r` of most of its work; NaN where unknown.
        deviation: standard deviation of `r`.
    """

    work: Span
    pauses: list[Span]
    other: list[Span]
    usual: float
    deviation: float

    @property
    def main(self) -> list[Span]:
        return subtract([self.work], merge([*self.pauses, *self.other]))


def _joined(blocks: Sequence[_Block]) -> tuple[list[Span], dict[str, list[Span]]]:
    """Return the spans of work and the found phases of a run.

    An evaluation may last longer than half of a block. Main work is that of most of the run: in a
    block whose usual work is another, main and other work change places.
    """
    usual = _weighted_median(
        [(b.usual, sum(y - x for x, y in b.main)) for b in blocks if not math.isnan(b.usual)]
    )
    other = [
        span
        for block in blocks
        for span in (
            block.main if abs(block.usual - usual) > DEVIATION * block.deviation else block.other
        )
    ]
    pauses = merge([span for block in blocks for span in block.pauses])
    work = merge([block.work for block in blocks])
    return work, {"pause": pauses, "other work": subtract(merge(other), pauses)}


def _weighted_median(weighted: Sequence[tuple[float, float]]) -> float:
    """Return the value below which half of the weight lies; NaN without any."""
    half = sum(weight for _, weight in weighted) / 2
    for value, weight in sorted(weighted):
        half -= weight
        if half <= 0:
            return value
    return math.nan


def _parts(
    run: Span, work: Sequence[Span], found: dict[str, list[Span]], compilations: Sequence[Span]
) -> dict[str, list[Span]]:
    """Return the disjoint spans of each phase, which together are the whole run."""
    whole = (max(work[0][0], run[0]), min(work[-1][1], run[1]))
    compiled = [(max(a, run[0]), min(b, run[1])) for a, b in merge(compilations)]
    compiled = [(a, b) for a, b in compiled if a < b]
    # Between two blocks that both worked lies a pause of a whole block.
    pauses = merge([*found["pause"], *subtract([whole], work)])
    parts = {
        "start-up": [(run[0], whole[0])] if run[0] < whole[0] else [],
        "main work": subtract([whole], merge([*pauses, *found["other work"]])),
        "other work": found["other work"],
        "pause": subtract(pauses, found["other work"]),
        "tail": [(whole[1], run[1])] if whole[1] < run[1] else [],
    }
    parts = {name: subtract(spans, compiled) for name, spans in parts.items()}
    parts = {"compilation": compiled, **parts}
    return {name: spans for name, spans in parts.items() if spans}


def _around(spans: Sequence[Span], time_s: float) -> Sequence[Span]:
    """Return the few of many disjoint spans that may contain a time."""
    i = bisect_right(spans, (time_s, math.inf))
    return spans[max(0, i - 2) : i + 1]


def _usual_gap_s(times_s: Sequence[float]) -> float:
    return median(b - a for a, b in pairwise(times_s))


def _ratio(working: Sequence[SignalReading], times_s: Sequence[float], time_s: float) -> float:
    """Return memory traffic per busy time around a moment."""
    # A microsecond more: sums of 0.2 s are not exact.
    low = bisect_left(times_s, time_s - SMOOTHED_S / 2 - 1e-6)
    high = bisect_right(times_s, time_s + SMOOTHED_S / 2 + 1e-6)
    near = working[low:high]
    return sum(r.memory_busy for r in near) / sum(r.busy for r in near)


def _deviating(
    times_s: Sequence[float], ratios: Sequence[float], usual: float, limit: float
) -> list[tuple[int, int]]:
    """Return first and last index of readings in a row that deviate in the same direction."""
    found: list[tuple[int, int]] = []
    last_sign = 0
    for i, ratio in enumerate(ratios):
        sign = 0 if abs(ratio - usual) < limit else (1 if ratio > usual else -1)
        if sign and sign == last_sign and times_s[i] - times_s[i - 1] <= SMOOTHED_S:
            found[-1] = (found[-1][0], i)
        elif sign:
            found.append((i, i))
        last_sign = sign
    return found


def _edges(
    working: Sequence[SignalReading], times_s: Sequence[float], low: int, high: int, usual: float
) -> Span:
    """Return the time of the single readings around `low` to `high` that are nearer to the other
    work than to the usual one: smoothing has moved both edges.
    """
    ratios = [r.memory_busy / r.busy for r in working[low : high + 1]]
    level = median(ratios)

    def belongs(i: int) -> bool:
        ratio = working[i].memory_busy / working[i].busy
        return abs(ratio - level) < abs(ratio - usual)

    def joined(i: int, j: int) -> bool:
        return abs(times_s[i] - times_s[j]) <= SMOOTHED_S

    while low < high and not belongs(low):
        low += 1
    while high > low and not belongs(high):
        high -= 1
    while low > 0 and belongs(low - 1) and joined(low - 1, low):
        low -= 1
    while high + 1 < len(working) and belongs(high + 1) and joined(high + 1, high):
        high += 1
    begin_s = times_s[low - 1] if low > 0 and joined(low - 1, low) else times_s[low]
    return begin_s, times_s[high]


def _begun_by_pauses(
    pauses: Sequence[Span], other: Sequence[Span]
) -> tuple[list[Span], list[Span]]:
    """Let a pause that ends where other work begins belong to it: a loader that starts, a
    compilation.
    """
    kept: list[Span] = []
    longer = list(other)
    for pause in pauses:
        i = bisect_left(longer, (pause[1] - LAG_S, -math.inf))
        if i < len(longer) and longer[i][0] - pause[1] <= SMOOTHED_S:
            longer[i] = (pause[0], longer[i][1])
        else:
            kept.append(pause)
    return kept, merge(longer)
