"""One workload on one GPU, as measured: what epochs cost at each cap, and what they lead to."""

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from wattloop.characterize.cap_table import MeasuredCurve
from wattloop.tune.problem import Quality

__all__ = ["METRIC", "Training", "Workload"]

METRIC = "quality"


@dataclass(frozen=True)
class Training:
    """One training that was recorded: the epoch at which each quality was first reached.

    Attributes:
        levels: (quality, epoch), from the easiest level to the hardest that was reached.
    """

    levels: tuple[tuple[float, int], ...]

    @cached_property
    def _epochs(self) -> list[int]:
        return [epoch for _, epoch in self.levels]

    def quality(self, epochs: float) -> float | None:
        """The hardest level reached after so many epochs; None before the first. Nothing is
        interpolated: that would tell when the next level is due.
        """
        count = bisect_right(self._epochs, epochs + 1e-9)
        return self.levels[count - 1][0] if count else None

    def epochs_to(self, wanted: Quality) -> int | None:
        """Epochs until the quality is good enough; None when it never was."""
        return next((epoch for level, epoch in self.levels if wanted.reached(level)), None)


@dataclass(frozen=True)
class Workload:
    """A problem with everything that was measured for it on one GPU.

    Attributes:
        gpu: from the name of the table.
        max_epochs: a training that is not there by then has failed.
        default: the default batch size, of those that were measured.
        curves: time and power of an epoch at each cap, by batch size.
        trainings: one per training seed, by batch size; the same batch sizes as `curves`.
    """

    gpu: str
    dataset: str
    network: str
    optimizer: str
    wanted: Quality
    max_epochs: int
    default: int
    curves: Mapping[int, MeasuredCurve]
    trainings: Mapping[int, tuple[Training, ...]]

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.dataset}/{self.network} on {self.gpu}"

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Those that can be replayed, ascending."""
        return tuple(sorted(self.curves))

    def epoch_energy_j(self, batch_size: int, cap_w: float) -> float:
        """Of one epoch."""
        curve = self.curves[batch_size]
        at = curve.caps_w.index(cap_w)
        return curve.time_s[at] * curve.power_w[at]

    def best_cap_w(self, batch_size: int) -> float:
        """The cap with the least energy."""
        caps = self.curves[batch_size].caps_w
        return min(caps, key=lambda cap_w: self.epoch_energy_j(batch_size, cap_w))

    def epochs(self, batch_size: int) -> float:
        """Expected epochs until the target is reached, trainings that failed and were begun anew
        included; infinite when none ever reached it.
        """
        taken = [training.epochs_to(self.wanted) for training in self.trainings[batch_size]]
        good = [n for n in taken if n is not None and n <= self.max_epochs]
        if not good:
            return math.inf
        return fmean(good) + (len(taken) - len(good)) * self.max_epochs / len(good)

    def energy_j(self, batch_size: int, cap_w: float) -> float:
        """Expected energy until the target is reached."""
        return self.epochs(batch_size) * self.epoch_energy_j(batch_size, cap_w)

    @cached_property
    def default_energy_j(self) -> float:
        """D: the default batch size at the highest cap."""
        return self.energy_j(self.default, self.curves[self.default].caps_w[-1])

    @cached_property
    def oracle_energy_j(self) -> float:
        """The least over batch sizes and caps."""
        return min(self.energy_j(b, self.best_cap_w(b)) for b in self.batch_sizes)
