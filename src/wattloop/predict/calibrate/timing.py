"""Timing of a kernel without waits for the host, and its sustained power, clock and rate."""

import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wattloop.predict.calibrate.machine import CalibrationDevice
from wattloop.predict.calibrate.sensor import GpuSensor, SensorSampler

SLEEP_CYCLES_S = 1.9e9
"""Approximate cycles per second of the GPU's sleep kernel."""


@dataclass(frozen=True, slots=True)
class Timed:
    """Time of one kernel.

    Attributes:
        seconds: of one call, the median of `rounds`.
        spread: (largest - smallest) / median of the rounds.
        repeats: calls in each round.
        host_s: dispatch time of one call.
    """

    seconds: float
    spread: float
    repeats: int
    rounds: int
    host_s: float


class Timer:
    """Timer with the device's own events.

    The GPU sleeps while the host queues the calls: they then run back to back, however small they
    are, as in a training step that is bound by the GPU.
    """

    def __init__(
        self,
        bench: CalibrationDevice,
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
        # Call every set once: results are kept until their turn comes again, and their memory must
        # not be allocated during the measurement.
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
            repeats = self._most  # the launch took longer than the kernel
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


CHUNK_S = 5e-3
IN_FLIGHT = 4


def hold(
    bench: CalibrationDevice,
    calls: Sequence[Callable[[], Any]],
    sensor: GpuSensor,
    *,
    duty: float = 1.0,
    settle_s: float = 0.7,
    window_s: float = 1.5,
) -> Mapping[str, object]:
    """Run `calls` in turn for `settle_s` + `window_s`, and return the readings of the second part.

    Without calls the GPU is idle. With a `duty` below 1 the GPU waits in between.
    """
    seconds = Timer(bench, rounds=1).time(calls).seconds if calls else None
    with SensorSampler(sensor) as watch:
        begin_s = time.perf_counter()
        marks = _run(bench, calls, seconds, duty, begin_s + settle_s + window_s)
        end_s = time.perf_counter()
        drawn = watch.drawn(begin_s + settle_s, end_s)
    settled = [mark for mark in marks if mark[0] >= begin_s + settle_s] or marks
    period_s = None
    if len(settled) >= 2 and settled[-1][1] > settled[0][1]:
        period_s = (settled[-1][0] - settled[0][0]) / (settled[-1][1] - settled[0][1])
    busy = None if seconds is None or period_s is None else min(1.0, seconds / period_s)
    return {
        "seconds": period_s,
        "kernel_seconds": seconds,
        "busy_share": 0.0 if seconds is None else busy,
        "power_w": drawn.power_w,
        "polled_power_w": drawn.polled_w,
        "clock_mhz": drawn.clock_mhz,
        "temp_c": drawn.temp_c,
        "window_s": drawn.window_s,
    }


def _run(
    bench: CalibrationDevice,
    calls: Sequence[Callable[[], Any]],
    seconds: float | None,
    duty: float,
    until_s: float,
) -> list[tuple[float, int]]:
    """Return the time after so many calls; a few chunks are queued ahead so that the GPU never
    waits.
    """
    if seconds is None:
        time.sleep(max(0.0, until_s - time.perf_counter()))
        return []
    chunk = max(1, min(400, round(CHUNK_S / seconds)))
    flying: deque[Any] = deque()
    marks: list[tuple[float, int]] = []
    done = asked = 0
    kept: list[Any] = [None] * len(calls)
    while time.perf_counter() < until_s:
        for _ in range(chunk):
            kept[asked % len(calls)] = calls[asked % len(calls)]()
            asked += 1
        flying.append(_event(bench))
        if len(flying) >= (1 if duty < 1 else IN_FLIGHT):
            flying.popleft().synchronize()
            done += chunk
            marks.append((time.perf_counter(), done))
        if duty < 1:
            time.sleep(chunk * seconds * (1 - duty) / duty)
    bench.synchronize()
    return marks


def _event(bench: CalibrationDevice) -> Any:
    if not bench.on_gpu:
        return _Done()
    event = bench.torch.cuda.Event()
    event.record()
    return event


class _Done:
    """Event on the CPU, where a call has ended when it returns."""

    def synchronize(self) -> None: ...
