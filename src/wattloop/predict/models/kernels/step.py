"""Time and power of many steps at once.

    step   = max(max(GPU, host) + communication, data)
    GPU    = compute / f + memory,   f = clock over the clock the GPU would choose
    energy = (idle + static) step + compute_j f^a + memory_j

When energy / step is above the cap, f falls until it is not: only compute-bound time stretches.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from wattloop.predict.models.kernels.table import Floats
from wattloop.predict.models.kernels.values import Values

__all__ = ["StepResults", "Steps", "step_results"]

SLOWEST_CLOCK = 0.1
"""No GPU is thought to fall below this share of its clock."""
ROUNDS = 14
"""Halvings of the clock's range when a cap binds: to 1/16,000."""
TINY_S = 1e-12


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps to compute; one value of each array per step.

    Attributes:
        compute_s, memory_s: GPU time at full clock that stretches with the clock, that does not.
        host_s: dispatch time on the host at hand.
        compute_j, memory_j: dynamic energy at full clock of multiprocessors, of memory.
        communication_s: exchange of gradients that nothing hides.
        data_s: time the data loader needs for the step's samples.
        cap_w: power limit.
        clock_share: locked clock over the one the GPU would choose; 1 when it is free.
    """

    compute_s: Floats
    memory_s: Floats
    host_s: Floats
    compute_j: Floats
    memory_j: Floats
    communication_s: Floats
    data_s: Floats
    cap_w: Floats
    clock_share: Floats

    def subset(self, rows: NDArray[np.intp]) -> "Steps":
        """Some of the steps."""
        return Steps(*(getattr(self, f.name)[rows] for f in fields(self)))

    @classmethod
    def joined(cls, parts: Sequence["Steps"]) -> "Steps":
        """The steps of all parts, one after the other."""
        return cls(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(cls)))

    def at(self, share: Floats, values: Values) -> "StepResults":
        """The steps with the GPU at this share of its clock, whatever the cap."""
        gpu_s = self.compute_s / share + self.memory_s
        longer, shorter = np.maximum(gpu_s, self.host_s), np.minimum(gpu_s, self.host_s)
        # Where both take about as long, neither hides behind the other all of the time.
        sharpness = values["host.overlap"]
        uneven = (shorter / np.maximum(longer, TINY_S)) ** sharpness
        step_s = longer * (1 + uneven) ** (1 / sharpness)
        step_s = np.maximum(step_s + self.communication_s, self.data_s)
        joules = self.compute_j * share ** values["power.clock_exponent"] + self.memory_j
        always_w = values["power.idle_w"] + values["power.static_w"]
        return StepResults(step_s, always_w + joules / np.maximum(step_s, TINY_S), gpu_s, share)


@dataclass(frozen=True, slots=True)
class StepResults:
    """Time of each step, mean power, busy GPU time, and the share of the clock it runs at."""

    step_s: Floats
    power_w: Floats
    gpu_s: Floats
    clock_share: Floats


def step_results(steps: Steps, values: Values) -> StepResults:
    """The steps, each with the clock that its cap allows."""
    free = steps.at(steps.clock_share, values)
    limit_w = steps.cap_w * values["power.cap_share"]
    over = np.flatnonzero(free.power_w > limit_w)
    if not len(over):
        return free
    capped, limit_w = steps.subset(over), limit_w[over]
    high = capped.clock_share
    low = np.minimum(np.full_like(high, SLOWEST_CLOCK), high)
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        fits = capped.at(middle, values).power_w <= limit_w
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    share = free.clock_share.copy()
    share[over] = low
    slowed = capped.at(low, values)
    for whole, part in ((free.step_s, slowed.step_s), (free.power_w, slowed.power_w),
                        (free.gpu_s, slowed.gpu_s)):  # fmt: skip
        whole[over] = part
    return StepResults(free.step_s, free.power_w, free.gpu_s, share)
