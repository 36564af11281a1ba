"""Power and energy of all nodes of a replay, from their virtual meters."""

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, Self

from wattloop.core.clock import RealClock
from wattloop.core.records import Gap
from wattloop.core.threads import BackgroundThread
from wattloop.virtual.gpu import VirtualGpu
from wattloop.virtual.meter import VirtualEnergy

PERIOD_S = 0.1


"""The cards' counters change ten times a second."""


RAMPS_S = (0.0, 0.001, 0.003, 0.006, 0.012, 0.025)


"""After a change cards need some milliseconds; they may cross meanwhile."""


class PowerSample(NamedTuple):
    """Mean power of all GPUs since the sample before."""

    at_s: float
    power_w: float


class PowerWatch(BackgroundThread):
    """Reads the energy counters of every GPU of every node, ten times a second, while open.

    Args:
        cards: the GPUs of each node.
    """

    def __init__(self, cards: Mapping[str, Sequence[VirtualGpu]]) -> None:
        super().__init__("power")
        clock = RealClock()
        self._meters = [VirtualEnergy(gpus, clock) for gpus in cards.values()]
        self._readings: list[tuple[float, float]] = []
        self.gaps = 0

    def __enter__(self) -> Self:
        self._read()
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        for meter in self._meters:
            meter.close()

    @property
    def power_now_w(self) -> float:
        """The latest."""
        samples = self.samples()
        return samples[-1].power_w if samples else 0.0

    def samples(self, begin_s: float = 0.0, end_s: float = float("inf")) -> list[PowerSample]:
        """Power over time, on the clock of `time.monotonic`."""
        between = [each for each in tuple(self._readings) if begin_s <= each[0] <= end_s]
        return [
            PowerSample(after_s, (after_j - before_j) / (after_s - before_s))
            for (before_s, before_j), (after_s, after_j) in pairwise(between)
            if after_s > before_s
        ]

    def _work(self) -> None:
        next_s = time.monotonic()
        while not self._stop.is_set():
            next_s = max(next_s + PERIOD_S, time.monotonic())
            self._stop.wait(next_s - time.monotonic())
            self._read()

    def _read(self) -> None:
        # A counter shows its value of the last tenth of a second, on the same ticks everywhere.
        tick_s = int(time.monotonic() / PERIOD_S) * PERIOD_S
        values = [value for meter in self._meters for value in meter.read()]
        if int(time.monotonic() / PERIOD_S) * PERIOD_S != tick_s:
            self.gaps += 1
            return
        joules = [value for value in values if not isinstance(value, Gap)]
        if len(joules) < len(values):
            self.gaps += 1
        elif not self._readings or tick_s > self._readings[-1][0]:
            self._readings.append((tick_s, sum(joules)))


def exact_peak_w(cards: Mapping[str, Sequence[VirtualGpu]], begin_s: float, end_s: float) -> float:
    """Most that all GPUs drew together, looked at after every change of any of them.

    Virtual cards know their whole past: nothing between two samples is missed.
    """
    gpus = [gpu for each in cards.values() for gpu in each]
    times_s = {begin_s, end_s}
    for gpu in gpus:
        changes = gpu.changes_s(begin_s, end_s)
        times_s.update(at_s + ramp_s for at_s in changes for ramp_s in RAMPS_S)
    return max(sum(gpu.power_w(at_s) for gpu in gpus) for at_s in times_s if at_s <= end_s)
