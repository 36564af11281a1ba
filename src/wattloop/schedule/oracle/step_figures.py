"""Time and power of steps, all workloads on all placements of one GPU type at once."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattloop.hardware.gpus import Gpu
from wattloop.predict.cap_curve import cap_curve, static_power
from wattloop.predict.communication import exchange, ring_of
from wattloop.predict.models.kernels import KernelModel
from wattloop.predict.models.model import Model
from wattloop.predict.models.roofline import Roofline
from wattloop.predict.prediction import Placement
from wattloop.predict.workload.workload import Workload

__all__ = ["StepFigures", "step_figures"]

BACKWARD_SHARE = 2 / 3
"""Of a step: backward does each product of forward twice."""


class StepFigures(NamedTuple):
    """Of every workload (rows) on every placement (columns).

    Attributes:
        step_s: time of one optimizer step.
        power_w: mean power of one GPU.
        source: which model answered, from which constants.
    """

    step_s: NDArray[np.float64]
    power_w: NDArray[np.float64]
    source: str


def step_figures(
    model: Model, workloads: Sequence[Workload], placements: Sequence[Placement]
) -> StepFigures:
    """Figures by one of `predict`'s models; all placements have its GPU type.

    `kernels` knows caps and rings. To the others, which do not, caps are added by the curve of a
    typical program, and to `roofline` the exchange of gradients as well.
    """
    if isinstance(model, KernelModel):
        found = model.predict_many(workloads, placements)
        source = model.predict(workloads[0], placements[0]).model
        return StepFigures(found.step_s, found.power_w, source)
    return _by_points(model, placements[0].gpu, workloads, placements)


def _by_points(
    model: Model, gpu: Gpu, workloads: Sequence[Workload], placements: Sequence[Placement]
) -> StepFigures:
    """One prediction per workload and ring, whose cap curve gives the rest."""
    shape = (len(workloads), len(placements))
    step_s, power_w = np.empty(shape), np.empty(shape)
    rings: dict[Placement, list[int]] = {}
    for column, placement in enumerate(placements):
        rings.setdefault(replace(placement, cap_w=None), []).append(column)
    source = ""
    for ring, columns in rings.items():
        points = [_point(model, workload, ring) for workload in workloads]
        caps_w = [placements[column].cap_w or gpu.tdp_w for column in columns]
        curve = cap_curve([p[0] for p in points], [p[1] for p in points], caps_w, gpu)
        step_s[:, columns], power_w[:, columns] = curve
        source = points[0][2]
    return StepFigures(step_s, power_w, source)


def _point(model: Model, workload: Workload, placement: Placement) -> tuple[float, float, str]:
    """Step time, power and source without a cap."""
    found = model.predict(workload, placement)
    if placement.gpus == 1 or not isinstance(model, Roofline):
        return found.step_s, found.power_w, found.model
    ring, backward_s = ring_of(placement), BACKWARD_SHARE * found.step_s
    exposed_s = float(exchange(workload.gradient_bytes, backward_s, ring).exposed_s)
    energy_j = found.step_s * found.power_w + exposed_s * static_power(placement.gpu).watts
    step_s = found.step_s + exposed_s
    return step_s, energy_j / step_s, found.model
