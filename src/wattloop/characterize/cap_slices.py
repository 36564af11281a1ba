"""One cap's share of a training: what a unit of progress takes, from steps as they happen.

Steps come at any time; evaluation, checkpoints and whatever else disturbs shows as a gap between
two of them that is far longer than usual, and is left out with its energy.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, stdev
from typing import NamedTuple

__all__ = ["Energy", "Slice", "Step", "Taken"]

GAP = 3.0
"""A step this many times as long as the median is no ordinary step."""
SHORTEST_S = 0.5
"""Shorter stretches between two disturbances say little about power, beside longer ones."""


class Step(NamedTuple):
    """A step that has ended; without units it is an interruption."""

    at_s: float
    units: float | None = 1.0


class Taken(NamedTuple):
    """Time and energy of a unit of progress; `noise` is the relative standard error of both."""

    time_s: float
    energy_j: float
    noise: float

    @property
    def power_w(self) -> float:
        """Average power of the devices together."""
        return self.energy_j / self.time_s


Energy = Callable[[float, float], tuple[float, float] | None]
"""(begin, end) -> joules and relative uncertainty of all devices; None when it is not known."""


@dataclass(slots=True)
class Slice:
    """Steps under one cap, the first of which only marks the beginning."""

    steps: list[Step] = field(default_factory=list)

    def stretches(self) -> list[Sequence[Step]]:
        """Steps without anything long or interrupting in between."""
        lengths = [
            b.at_s - a.at_s
            for a, b in itertools.pairwise(self.steps)
            if a.units is not None and b.units is not None
        ]
        usual_s = median(lengths) if lengths else 0.0
        found: list[list[Step]] = [[]]
        for step in self.steps:
            before = found[-1][-1] if found[-1] else None
            if step.units is None:
                found.append([])
                continue
            if before is not None and step.at_s - before.at_s > GAP * usual_s > 0:
                found.append([])
            found[-1].append(step)
        return [part for part in found if len(part) > 1]

    @property
    def clean_s(self) -> float:
        """Time of ordinary steps so far."""
        return sum(part[-1].at_s - part[0].at_s for part in self.stretches())

    def taken(self, energy: Energy) -> Taken | None:
        """What a unit took; None when there is too little to say."""
        parts = self.stretches()
        lengths = [part[-1].at_s - part[0].at_s for part in parts]
        least_s = min(SHORTEST_S, max(lengths, default=0.0) / 2)
        long = [part for part, length_s in zip(parts, lengths, strict=True) if length_s >= least_s]
        joules, energy_s, variance = 0.0, 0.0, 0.0
        for part in long:
            begin_s, end_s = part[0].at_s, part[-1].at_s
            known = energy(begin_s, end_s)
            if known is None:
                return None
            joules += known[0]
            variance += (known[0] * known[1]) ** 2
            energy_s += end_s - begin_s
        if joules <= 0:
            return None
        per_unit = [
            (b.at_s - a.at_s) / (b.units or 1.0)
            for part in parts
            for a, b in itertools.pairwise(part)
        ]
        units = sum(step.units or 0.0 for part in parts for step in part[1:])
        time_s = self.clean_s / units
        spread = stdev(per_unit) / fmean(per_unit) if len(per_unit) > 1 else 0.3
        error = spread / math.sqrt(len(per_unit))
        power_w = joules / energy_s
        return Taken(time_s, power_w * time_s, max(error, math.sqrt(variance) / joules, 1e-4))
