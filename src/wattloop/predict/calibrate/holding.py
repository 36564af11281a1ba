"""Hold a kernel for seconds: its sustained power, clock and rate."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wattloop.predict.calibrate.bench import Bench
from wattloop.predict.calibrate.sensor import Sensor
from wattloop.predict.calibrate.timing import Timer
from wattloop.predict.calibrate.watch import Watch

__all__ = ["hold"]

CHUNK_S = 5e-3
IN_FLIGHT = 4


def hold(
    bench: Bench,
    calls: Sequence[Callable[[], Any]],
    sensor: Sensor,
    *,
    duty: float = 1.0,
    settle_s: float = 0.7,
    window_s: float = 1.5,
) -> Mapping[str, object]:
    """Run `calls` in turn for `settle_s` + `window_s`, and say what the second part drew.

    No calls at all is the idle GPU. With a `duty` below 1 the GPU waits in between.
    """
    seconds = Timer(bench, rounds=1).time(calls).seconds if calls else None
    with Watch(sensor) as watch:
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
    bench: Bench,
    calls: Sequence[Callable[[], Any]],
    seconds: float | None,
    duty: float,
    until_s: float,
) -> list[tuple[float, int]]:
    """When so many calls were done; a few chunks are queued ahead so that the GPU never waits."""
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


def _event(bench: Bench) -> Any:
    if not bench.on_gpu:
        return _Done()
    event = bench.torch.cuda.Event()
    event.record()
    return event


class _Done:
    """On the CPU a call has ended when it returns."""

    def synchronize(self) -> None:
        """Nothing to wait for."""
