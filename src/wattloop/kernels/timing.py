"""Timing of kernels: warm-up, batches, the median and its interval.

Runs are started in batches that end with a synchronisation, so that the wait for the device is
paid once per batch and not per run. The number of batches follows from the time asked for, which
has to be long against the energy sensor's update (100 ms on NVIDIA), never from a fixed count.
"""

import functools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

BATCH_S = 0.05
"""A batch is long against the cost of waiting for a device, about 10 us."""
MIN_BATCHES = 5
"""As many as the thesis repeats each experiment."""
BURST_S = 0.03
"""Short against the second or so in which a GPU's power limit takes hold."""
PAUSE_S = 0.7
BURSTS = 3
MANY, Z_975 = 100, 1.959964
MAX_RUNS = 100_000
"""Per batch, should a run take no time at all."""


class Runnable(Protocol):
    """Protocol of work that can be timed."""

    def run(self) -> None: ...

    def synchronise(self) -> None:
        """Wait for all of them."""
        ...


class Timing(NamedTuple):
    """Times of many runs.

    Attributes:
        begin_s, end_s: the measured stretch on the machine's monotonic clock, warm-up excluded.
        batch_s: seconds per run, one value for each batch.
    """

    begin_s: float
    end_s: float
    runs: int
    per_batch: int
    batch_s: tuple[float, ...]

    @property
    def time_s(self) -> float:
        return statistics.median(self.batch_s)

    @property
    def interval_s(self) -> tuple[float, float]:
        return median_interval(self.batch_s)

    @property
    def duration_s(self) -> float:
        return self.end_s - self.begin_s


def time_runs(
    work: Runnable,
    seconds: float,
    *,
    now_s: Callable[[], float],
    warmup_s: float = 0.3,
    each_waits: bool = False,
) -> Timing:
    """Run `work` for about so many seconds, after a warm-up; at least five batches.

    With `each_waits` every run is waited for: some frameworks would queue up results.
    """
    batch = functools.partial(_batch_s, work, now_s, each_waits)
    per_batch = _warmed_up(batch, warmup_s, min(BATCH_S, seconds / MIN_BATCHES), now_s)
    begin_s = now_s()
    times_s: list[float] = []
    while len(times_s) < MIN_BATCHES or now_s() - begin_s < seconds:
        times_s.append(batch(per_batch) / per_batch)
    return Timing(begin_s, now_s(), per_batch * len(times_s), per_batch, tuple(times_s))


def burst_s(work: Runnable, *, now_s: Callable[[], float], sleep: Callable[[float], None]) -> float:
    """Seconds per run in a burst that is over before a GPU's power limit takes hold.

    Dense kernels draw more than a card may: after some tens of milliseconds its clock falls, and
    stays down. What people call the speed of a GPU is often that of the first moment, so both are
    told: this, and the time that lasts. Median of three bursts with pauses between.
    """
    batch = functools.partial(_batch_s, work, now_s, False)
    work.synchronise()
    once_s = max(batch(1), 1e-9)
    runs = max(MIN_BATCHES, min(MAX_RUNS, round(BURST_S / once_s)))
    times_s = []
    for _ in range(BURSTS):
        sleep(PAUSE_S)
        batch(1)
        times_s.append(batch(runs) / runs)
    return statistics.median(times_s)


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """95% interval of the median that assumes nothing about the distribution.

    The k-th smallest and k-th largest value enclose the median unless fewer than k of n values
    lie on one side of it, which has the probability of a binomial(n, 1/2). Below six values no
    pair reaches 95%: the extremes are given. Above a hundred the normal distribution will do.
    """
    ordered = sorted(values)
    number, tail, below = len(ordered), 0.0, 0
    if number > MANY:
        below = math.floor((number - Z_975 * math.sqrt(number)) / 2)
    while number <= MANY and below < number // 2:
        tail += math.comb(number, below) / 2**number
        if tail > 0.025:
            break
        below += 1
    rank = max(0, below - 1)
    return ordered[rank], ordered[number - 1 - rank]


def _batch_s(work: Runnable, now_s: Callable[[], float], each_waits: bool, runs: int) -> float:
    begin_s = now_s()
    for _ in range(runs):
        work.run()
        if each_waits:
            work.synchronise()
    work.synchronise()
    return now_s() - begin_s


def _warmed_up(
    batch: Callable[[int], float], warmup_s: float, batch_s: float, now_s: Callable[[], float]
) -> int:
    """Run until warm, and until a batch is known to be long enough; returns its runs."""
    begin_s, runs = now_s(), 1
    while True:
        took_s = batch(runs)
        enough = took_s >= batch_s / 2 or runs >= MAX_RUNS
        runs = max(1, min(MAX_RUNS, round(runs * batch_s / max(took_s, 1e-9)), 10 * runs))
        if enough and now_s() - begin_s >= warmup_s:
            return runs
