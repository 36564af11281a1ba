"""A sensor sampled from a thread while work runs."""

import itertools
import time
from dataclasses import dataclass
from typing import NamedTuple

from wattloop.core.beside import Beside
from wattloop.predict.calibrate.sensor import Sensor

__all__ = ["Drawn", "Watch"]

PAUSE_S = 2e-3
LONG_PAUSE_S = 0.02
"""Between samples of a sensor without a counter, whose changes need not be caught."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """What the GPU drew over a stretch of time; None where it cannot be read.

    Attributes:
        power_w: the energy counter's difference between two of its changes; the mean of the power
            readings for a GPU without a counter.
        polled_w: mean of the power readings.
        clock_mhz, temp_c: mean clock, temperature at the end.
        window_s: the stretch the power covers.
    """

    power_w: float | None
    polled_w: float | None
    clock_mhz: float | None
    temp_c: float | None
    window_s: float


class _Sample(NamedTuple):
    time_s: float
    energy_j: float | None
    power_w: float | None
    clock_mhz: float | None


class Watch(Beside):
    """Samples while its block runs: `with Watch(sensor) as watch: ...`."""

    def __init__(self, sensor: Sensor) -> None:
        super().__init__("wattloop-watch")
        self._sensor = sensor
        self._samples: list[_Sample] = []

    def drawn(self, begin_s: float, end_s: float) -> Drawn:
        """What was drawn between two times of `time.perf_counter`.

        The counter's value stands still for 100 ms at a time: power is taken from its first change
        inside the window to its last, so that neither edge is a stale value.
        """
        inside = [sample for sample in self._samples if begin_s <= sample.time_s <= end_s]
        polled_w = _mean([sample.power_w for sample in inside])
        power_w, window_s = None, end_s - begin_s
        changes = [
            (now.time_s, now.energy_j)
            for before, now in itertools.pairwise(inside)
            if before.energy_j is not None
            and now.energy_j is not None
            and now.energy_j != before.energy_j
        ]
        if len(changes) >= 2:
            (first_s, first_j), (last_s, last_j) = changes[0], changes[-1]
            window_s = last_s - first_s
            power_w = (last_j - first_j) / window_s
        elif all(sample.energy_j is None for sample in inside):
            power_w = polled_w
        return Drawn(
            power_w,
            polled_w,
            _mean([sample.clock_mhz for sample in inside]),
            self._sensor.temp_c(),
            window_s,
        )

    def _work(self) -> None:
        sensor = self._sensor
        while not self._stop.is_set():
            energy_j = sensor.energy_j()
            now_s = time.perf_counter()
            sample = _Sample(now_s, energy_j, sensor.power_w(), sensor.clock_mhz())
            self._samples.append(sample)
            self._stop.wait(LONG_PAUSE_S if energy_j is None else PAUSE_S)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
