"""One cap's share of a training: what a unit of progress takes, from steps as they happen.

Steps come at any time, also in bursts, because a program queues work on a GPU and waits for it only
now and then. Evaluation, checkpoints and whatever else disturbs shows as a gap between two of them
that is far longer for its progress than usual, and is left out with its energy.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import NamedTuple

__all__ = ["Energy", "Slice", "Step", "Taken"]

GAP = 3.0
"""A step whose units take this many times as long as usual is no ordinary step."""
LEAST_GAP_S = 0.5
"""Shorter gaps are ordinary: a program that runs ahead of its GPU waits for it now and then."""
BURST_S = 0.25
"""Steps are taken together until they are this long, to tell their usual pace."""
BINS = 16
SHORTEST_S = 0.5
"""Shorter stretches between two disturbances say little about power, beside longer ones."""


class Step(NamedTuple):
    """A step that has ended, with units above 0; without any it is an interruption."""

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

    def limit(self, other: "Taken", least: float) -> float:
        """How much two of the same work may differ (natural logarithm): `least`, or the noise."""
        return max(least, 4 * math.hypot(self.noise, other.noise))


Energy = Callable[[float, float], tuple[float, float] | None]
"""(begin, end) -> joules and relative uncertainty of all devices; None when it is not known."""


@dataclass(slots=True)
class Slice:
    """Steps under one cap, the first of which only marks the beginning."""

    steps: list[Step] = field(default_factory=list)

    def stretches(self) -> list[Sequence[Step]]:
        """Steps without anything long or interrupting in between."""
        usual_s = self._usual_s()
        found: list[list[Step]] = [[]]
        for step in self.steps:
            before = found[-1][-1] if found[-1] else None
            if step.units is None:
                found.append([])
                continue
            longest_s = max(GAP * usual_s * step.units, LEAST_GAP_S)
            if before is not None and step.at_s - before.at_s > longest_s:
                found.append([])
            found[-1].append(step)
        return [part for part in found if len(part) > 1]

    def _usual_s(self) -> float:
        """Time of a unit: half of all units were in steps, or bursts of them, that were slower."""
        parts: list[list[Step]] = [[]]
        for step in self.steps:
            parts.append([]) if step.units is None else parts[-1].append(step)
        bins = sorted(
            (length_s / units, units) for part in parts for length_s, units in _bins(part, BURST_S)
        )
        half = sum(units for _, units in bins) / 2
        for per_unit_s, units in bins:
            half -= units
            if half <= 0:
                return per_unit_s
        return 0.0

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
        units = sum(step.units or 0.0 for part in parts for step in part[1:])
        clean_s = sum(lengths)
        time_s = clean_s / units
        # Steps depend on those before them where a program runs ahead of its GPU; bins hardly do.
        bins = [b for part in parts for b in _bins(part, clean_s / BINS)]
        per_unit = [length_s / n for length_s, n in bins]
        spread = stdev(per_unit) / fmean(per_unit) if len(per_unit) > 1 else 0.3
        error = spread / math.sqrt(len(per_unit))
        power_w = joules / energy_s
        return Taken(time_s, power_w * time_s, max(error, math.sqrt(variance) / joules, 1e-4))


def _bins(part: Sequence[Step], least_s: float) -> Iterator[tuple[float, float]]:
    """Time and units of consecutive steps together, each at least so long; a step that alone is as
    long stands alone.
    """
    length_s = units = 0.0
    for a, b in itertools.pairwise(part):
        step_s = b.at_s - a.at_s
        if step_s >= least_s and units:
            yield length_s, units
            length_s = units = 0.0
        length_s += step_s
        units += b.units or 0.0
        if length_s >= least_s:
            yield length_s, units
            length_s = units = 0.0
    if units and length_s >= least_s / 2:
        yield length_s, units
