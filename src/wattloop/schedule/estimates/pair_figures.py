"""Vectorised predictions of a workload on many placements of a GPU, with intervals.

`predict` takes a millisecond per pair, mostly for the breakdown and texts. This module computes
only the parts that depend on the placement: time, power, and the waiting share and power level that
determine the width of an interval (`predict.spreads`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from wattloop.hardware.gpus import Gpu
from wattloop.predict.intervals import (
    CONFIDENCE,
    HOST_SHARE,
    Intervals,
    kinds_of,
    spread_of,
    traits_at,
)
from wattloop.predict.models.kernels import KernelModel
from wattloop.predict.models.kernels.step import (
    StepProfile,
    StepResults,
    Steps,
    all_pairs,
    step_results,
)
from wattloop.predict.prediction import Placement
from wattloop.predict.workload.workload import Workload

Floats = NDArray[np.float64]


QUANTITIES = ("time", "power", "energy")


class PairFigures(NamedTuple):
    """Figures of each placement.

    Attributes:
        step_s: time of one optimizer step.
        power_w: mean power of one GPU.
        factors: quantity -> with 90% confidence the true value is within value / factor and value x
        factor; a quantity with an unknown factor is absent.
    """

    step_s: Floats
    power_w: Floats
    factors: dict[str, Floats]


class OnGpu:
    """Workload on one GPU type, with everything that does not depend on the placement.

    Args:
        model: model with constants of the GPU.
        workload: one training step.
        gpu: GPU of all placements.
    """

    def __init__(self, model: KernelModel, workload: Workload, gpu: Gpu) -> None:
        one = model.predict(workload, Placement(gpu))
        self.source = one.model
        self.warnings = one.warnings
        self.values = model.kernel_constants.values
        self.profile: StepProfile = model.profile(workload, gpu)
        self._intervals = model.intervals
        self._kinds = kinds_of(one)
        self._distance = 1.0
        if self._intervals is not None and self._intervals.scope is not None:
            self._distance = self._intervals.scope.distance(workload, Placement(gpu)).factor

    def figures(self, placements: Sequence[Placement]) -> PairFigures:
        """Predict all placements at once."""
        return figures_of([self], [placements])[0]

    def factors(self, steps: Steps, result: StepResults) -> dict[str, Floats]:
        """Return the interval factors of each step."""
        if self._intervals is None:
            return {}
        traits = traits_at(result.power_w / steps.cap_w, result.gpu_s / result.step_s, self._kinds)
        is_host = steps.host_s >= HOST_SHARE * result.step_s
        found = {name: self._factors(self._intervals, name, traits, is_host) for name in QUANTITIES}
        return {name: values for name, values in found.items() if values is not None}

    def _factors(
        self,
        intervals: Intervals,
        quantity: str,
        traits: Mapping[str, Floats | np.float64],
        is_host: NDArray[np.bool_],
    ) -> Floats | None:
        halves = [intervals.half_width(quantity, key, CONFIDENCE) for key in ("gpu", "host")]
        if halves[0] is None or halves[1] is None:
            return None
        half = np.where(is_host, halves[1], halves[0])
        spread: Floats | np.float64 = np.float64(1.0)
        if quantity in intervals.spreads:
            spread = spread_of(intervals.spreads[quantity], traits)
        return np.asarray(np.exp(half * spread * self._distance), dtype=np.float64)


def figures_of(
    workloads: Sequence[OnGpu], placements: Sequence[Sequence[Placement]]
) -> list[PairFigures]:
    """Predict several workloads on one GPU type together, each on its own placements."""
    alike: dict[tuple[int, ...], list[int]] = {}
    for number, wanted in enumerate(placements):  # usually all workloads have the same placements
        alike.setdefault(tuple(map(id, wanted)), []).append(number)
    groups = list(alike.values())
    parts = [
        all_pairs([workloads[number].profile for number in group], placements[group[0]])
        for group in groups
    ]
    steps = Steps.joined(parts)
    result = step_results(steps, workloads[0].values)
    found: dict[int, PairFigures] = {}
    begin = 0
    for number in (number for group in groups for number in group):
        end = begin + len(placements[number])
        own = _rows(result, begin, end)
        factors = workloads[number].factors(_rows(steps, begin, end), own)
        found[number] = PairFigures(own.step_s, own.power_w, factors)
        begin = end
    return [found[number] for number in range(len(workloads))]


R = TypeVar("R", Steps, StepResults)


def _rows(columns: R, begin: int, end: int) -> R:
    return type(columns)(*(getattr(columns, each.name)[begin:end] for each in fields(columns)))
