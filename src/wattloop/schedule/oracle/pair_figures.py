"""One workload on many placements of a GPU, with intervals: what `predict` says, as arrays.

`predict` answers one pair in a millisecond, most of it for terms and words. Here only what depends
on the placement is computed again: time, power, and how much of its limit the GPU draws, which the
width of an interval follows (`predict.spreads`).
"""

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattloop.hardware.gpus import Gpu
from wattloop.predict.intervals import CONFIDENCE, HOST_SHARE, Intervals
from wattloop.predict.models.kernels import KernelModel
from wattloop.predict.models.kernels.batch import all_pairs
from wattloop.predict.models.kernels.profile import StepProfile
from wattloop.predict.models.kernels.step import StepResults, Steps, step_results
from wattloop.predict.placement import Placement
from wattloop.predict.prediction import Prediction
from wattloop.predict.spreads import FULL, parts_of
from wattloop.predict.workload.workload import Workload

__all__ = ["OnGpu", "PairFigures", "figures_of"]

Floats = NDArray[np.float64]
QUANTITIES = ("time", "power", "energy")


class PairFigures(NamedTuple):
    """Of each placement.

    Attributes:
        step_s: time of one optimizer step.
        power_w: mean power of one GPU.
        factors: quantity -> with 90% confidence the truth is within value / factor and value x
            factor; a quantity is absent where nobody knows.
    """

    step_s: Floats
    power_w: Floats
    factors: dict[str, Floats]


class OnGpu:
    """A workload on one GPU type: what does not depend on the placement, made once.

    Args:
        model: with constants of the GPU.
        workload: one training step.
        gpu: of all placements.
    """

    def __init__(self, model: KernelModel, workload: Workload, gpu: Gpu) -> None:
        one = model.predict(workload, Placement(gpu))
        self.source = one.model
        self.warnings = one.warnings
        self.values = model.kernel_constants.values
        self._profile: StepProfile = model.profile(workload, gpu)
        self._intervals = model.intervals
        self._busy = _busy_shares(one)
        self._distance = 1.0
        if self._intervals is not None and self._intervals.scope is not None:
            self._distance = self._intervals.scope.distance(workload, Placement(gpu)).factor

    def figures(self, placements: Sequence[Placement]) -> PairFigures:
        """On every placement at once."""
        return figures_of([self], [placements])[0]

    def steps(self, placements: Sequence[Placement]) -> Steps:
        """What is to be computed."""
        return all_pairs([self._profile], placements)

    def factors(self, steps: Steps, result: StepResults) -> dict[str, Floats]:
        """How far off each may be; steps and results may be of others as well."""
        if self._intervals is None:
            return {}
        load = np.minimum(result.power_w / (FULL * steps.cap_w), 1.0)
        is_host = steps.host_s >= HOST_SHARE * result.step_s
        found = {name: self._factors(self._intervals, name, load, is_host) for name in QUANTITIES}
        return {name: values for name, values in found.items() if values is not None}

    def _factors(
        self, intervals: Intervals, quantity: str, load: Floats, is_host: NDArray[np.bool_]
    ) -> Floats | None:
        halves = [intervals.half_width(quantity, key, CONFIDENCE) for key in ("gpu", "host")]
        if halves[0] is None or halves[1] is None:
            return None
        half = np.where(is_host, halves[1], halves[0])
        spread: Floats | float = 1.0
        if quantity in intervals.spreads:
            known = intervals.spreads[quantity]
            largest = max(known.values())
            busy = sum(
                share * known.get(name, largest) for name, share in self._busy.items() if share
            )
            unloaded = known.get("unloaded", largest)
            spread = np.maximum((1 - load) * unloaded + load * busy, known["least"])
        return np.asarray(np.exp(half * spread * self._distance), dtype=np.float64)


def figures_of(
    workloads: Sequence[OnGpu], placements: Sequence[Sequence[Placement]]
) -> list[PairFigures]:
    """Several workloads on one GPU type, each on placements of its own, all computed together."""
    parts = [each.steps(own) for each, own in zip(workloads, placements, strict=True)]
    result = step_results(Steps.joined(parts), workloads[0].values)
    found, begin = [], 0
    for workload, part in zip(workloads, parts, strict=True):
        end = begin + len(part.cap_w)
        own = StepResults(*(getattr(result, each.name)[begin:end] for each in fields(StepResults)))
        factors = workload.factors(part, own)
        found.append(PairFigures(own.step_s, own.power_w, factors))
        begin = end
    return found


def _busy_shares(prediction: Prediction) -> dict[str, float]:
    """What the GPU does when it is loaded, by part; the same on every placement."""
    # as if it drew its whole limit, so that nothing is unloaded
    parts = parts_of(prediction, prediction.power_w / FULL if prediction.power_w else math.inf)
    return {name: share for name, share in parts.items() if name != "unloaded"}
