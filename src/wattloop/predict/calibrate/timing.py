"""How long a kernel takes when the GPU never waits for the host."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from wattloop.predict.calibrate.bench import Bench

__all__ = ["Timed", "Timer"]

SLEEP_CYCLES_S = 1.9e9
"""Cycles of the GPU's sleep kernel in a second; a little off does no harm."""


@dataclass(frozen=True, slots=True)
class Timed:
    """One kernel's time.

    Attributes:
        seconds: of one call, the median of `rounds`.
        spread: (largest - smallest) / median of the rounds.
        repeats: calls in each round.
        host_s: time the host needed to ask for one call.
    """

    seconds: float
    spread: float
    repeats: int
    rounds: int
    host_s: float


class Timer:
    """Times calls with the device's own events.

    The GPU is put to sleep while the host queues the calls: they then run back to back, however
    small they are, as they do in a training step that is bound by the GPU.
    """

    def __init__(
        self,
        bench: Bench,
        *,
        round_s: float = 4e-3,
        rounds: int = 3,
        most_repeats: int = 100,
        longest_sleep_s: float = 0.05,
    ) -> None:
        self._bench = bench
        self._round_s = round_s
        self._rounds = rounds
        self._most = most_repeats
        self._longest_sleep_s = longest_sleep_s

    def time(self, calls: Sequence[Callable[[], Any]]) -> Timed:
        """Warm up, choose the number of repeats, and take the median of the rounds."""
        # Every set once: results are kept until their turn comes again, and the memory for them
        # must not be asked for while the clock runs.
        kept: list[Any] = [call() for call in calls]
        for number in range(2):
            kept[number % len(calls)] = calls[number % len(calls)]()
        self._bench.synchronize()
        begin = time.perf_counter()
        for number in range(2):
            kept[number % len(calls)] = calls[number % len(calls)]()
        host_s = (time.perf_counter() - begin) / 2
        self._bench.synchronize()
        rough_s = max((time.perf_counter() - begin) / 2, 1e-7)
        repeats = min(self._most, max(1, round(self._round_s / rough_s)))
        if rough_s < 5e-5:
            repeats = self._most  # launching it took longer than running it
        rounds = 2 if rough_s > 10 * self._round_s else self._rounds
        times = [self._round(calls, kept, repeats, host_s) for _ in range(rounds)]
        median = statistics.median(times)
        return Timed(median, (max(times) - min(times)) / median, repeats, rounds, host_s)

    def _round(
        self, calls: Sequence[Callable[[], Any]], kept: list[Any], repeats: int, host_s: float
    ) -> float:
        if not self._bench.on_gpu:
            begin = time.perf_counter()
            for number in range(repeats):
                kept[number % len(calls)] = calls[number % len(calls)]()
            return (time.perf_counter() - begin) / repeats
        cuda = self._bench.torch.cuda
        first, last = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        sleep_s = min(1.3 * host_s * repeats + 2e-4, self._longest_sleep_s)
        cuda._sleep(int(sleep_s * SLEEP_CYCLES_S))
        first.record()
        for number in range(repeats):
            kept[number % len(calls)] = calls[number % len(calls)]()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / 1e3 / repeats
