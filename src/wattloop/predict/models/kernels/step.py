"""Time and power of many steps at once.

    step   = max(max(GPU, host) + communication, data)
    GPU    = compute / f + memory,   f = clock over the clock the GPU would choose
    energy = (idle + static) step + compute_j V(f)^2 + memory_j

When energy / step is above the cap, f falls until it is not: only compute-bound time stretches
(`predict.capped`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from wattloop.predict import capped
from wattloop.predict.models.kernels.table import Floats
from wattloop.predict.models.kernels.values import Values

__all__ = ["StepResults", "Steps", "step_results", "voltage_of"]

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

    @classmethod
    def joined(cls, parts: Sequence["Steps"]) -> "Steps":
        """The steps of all parts, one after the other."""
        return cls(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(cls)))


@dataclass(frozen=True, slots=True)
class StepResults:
    """Time of each step, mean power, busy GPU time, and the share of the clock it runs at."""

    step_s: Floats
    power_w: Floats
    gpu_s: Floats
    clock_share: Floats


def step_results(steps: Steps, values: Values) -> StepResults:
    """The steps, each with the clock that its cap allows."""
    gpu_s = steps.compute_s / steps.clock_share + steps.memory_s
    waiting_s = steps.communication_s + unhidden_s(gpu_s, steps.host_s, values)
    profile = capped.StepProfile(
        compute_s=steps.compute_s,
        memory_s=steps.memory_s,
        static_w=values["power.idle_w"] + values["power.static_w"],
        compute_j=steps.compute_j,
        memory_j=steps.memory_j,
        # A step that waits for data waits like one that waits for the host.
        host_s=np.maximum(steps.host_s, steps.data_s - waiting_s),
        waiting_s=waiting_s,
    )
    settled = capped.settle(
        profile,
        cap_w=steps.cap_w * values["power.cap_share"],
        clock=steps.clock_share,
        voltage=voltage_of(values),
    )
    gpu_s = steps.compute_s / settled.clock + steps.memory_s
    return StepResults(settled.step_s, settled.power_w, gpu_s, settled.clock)


def unhidden_s(gpu_s: Floats, host_s: Floats, values: Values) -> Floats:
    """What a step takes beyond the longer of GPU and host, because they take turns at waiting."""
    longer, shorter = np.maximum(gpu_s, host_s), np.minimum(gpu_s, host_s)
    sharpness = values["host.overlap"]
    evenness = (shorter / np.maximum(longer, TINY_S)) ** sharpness
    return np.asarray(longer * ((1 + evenness) ** (1 / sharpness) - 1), dtype=np.float64)


def voltage_of(values: Values) -> capped.VoltageCurve:
    """How the voltage follows the clock."""
    return capped.VoltageCurve(values["power.voltage_floor"], values["power.voltage_knee"])
