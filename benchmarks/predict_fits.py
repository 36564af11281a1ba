"""Fits of the benchmarks: data-sheet rules over several GPUs, host speeds, one model left out."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import Gpu
from wattloop.predict.intervals import Residual
from wattloop.predict.models.kernels.constants import KernelConstants
from wattloop.predict.models.kernels.datasheet import FITTED, SpecRules, spec_constants
from wattloop.predict.models.kernels.fit import minimise
from wattloop.predict.models.kernels.model import KernelModel
from wattloop.predict.models.kernels.operation_table import Floats
from wattloop.predict.models.kernels.step import Prepared, all_pairs, profile_of, step_results
from wattloop.predict.models.model import MeasuredStep, Model
from wattloop.predict.prediction import Prediction

ROWS_OF_A_GPU = 1.0
"""Steps on one GPU have a common error: together they count as this many."""
SOFT = 0.1
ROUNDS = 15
HOST_SPEEDS = tuple(0.5 * 1.05**step for step in range(29))
"""Half to twice the speed of the host in the fit."""


def fitted_rules(
    points: Sequence[MeasuredStep], reference: KernelConstants, calibrated: Gpu, start: SpecRules
) -> SpecRules:
    """Return `start` with the numbers in `FITTED` fitted to the times of `points`."""
    measured = np.log([point.step_s for point in points])
    rows = Counter(point.placement.gpu.name for point in points)
    prepared = [Prepared.of(point.workload) for point in points]
    weight = np.sqrt([ROWS_OF_A_GPU / rows[point.placement.gpu.name] for point in points])

    def rules_at(x: Floats) -> SpecRules:
        return start.changed(
            **{
                name: getattr(start, name) * float(np.exp(at))
                for name, at in zip(FITTED, x, strict=True)
            }
        )

    def residuals(x: Floats) -> Floats:
        seconds = _seconds(points, prepared, reference, calibrated, rules_at(x))
        return np.asarray(weight * (np.log(seconds) - measured), dtype=np.float64)

    prior = np.array(list(FITTED.values()))
    found = minimise(residuals, np.zeros(len(FITTED)), prior, soft=SOFT, rounds=ROUNDS)
    return rules_at(found)


def spec_seconds(
    points: Sequence[MeasuredStep], reference: KernelConstants, calibrated: Gpu, rules: SpecRules
) -> Floats:
    prepared = [Prepared.of(point.workload) for point in points]
    return _seconds(points, prepared, reference, calibrated, rules)


def _seconds(
    points: Sequence[MeasuredStep],
    prepared: Sequence[Prepared],
    reference: KernelConstants,
    calibrated: Gpu,
    rules: SpecRules,
) -> Floats:
    constants: dict[str, KernelConstants] = {}
    seconds = []
    for point, step in zip(points, prepared, strict=True):
        gpu = point.placement.gpu
        if gpu.name not in constants:
            constants[gpu.name] = spec_constants(gpu, reference, calibrated, rules)
        values = constants[gpu.name].values
        profile = profile_of(step, gpu, values, constants[gpu.name].residuals)
        steps = all_pairs([profile], [point.placement])
        seconds.append(float(step_results(steps, values).step_s[0]))
    return np.array(seconds)


@dataclass(frozen=True, slots=True)
class Judged:
    """Measured step and its prediction."""

    point: MeasuredStep
    prediction: Prediction

    @property
    def residual(self) -> Residual:
        point = self.point
        return Residual.of(
            point.group, self.prediction, point.step_s, point.power_w, point.placement
        )


def leave_one_out(
    model: Model,
    points: Sequence[MeasuredStep],
    progress: Callable[[str], None] | None = None,
    also: Callable[[str], Sequence[MeasuredStep]] | None = None,
) -> list[Judged]:
    """Predict all `points`, each group by a `model` fitted to the other groups.

    Args:
        model: what is fitted; it is not changed.
        points: measured steps of at least two groups.
        progress: called with the name of a group before it is left out.
        also: the group left out -> additional steps of other models for the fit.
    """
    groups = list(dict.fromkeys(point.group for point in points))
    if len(groups) < 2:
        raise ConfigError("leaving a model out needs measured steps of at least two models")
    judged = {}
    for group in groups:
        if progress:
            progress(group)
        known = [*points, *(also(group) if also else ())]
        fitted = model.fit([point for point in known if point.group != group])
        for index, point in enumerate(points):
            if point.group == group:
                there = replace(point, placement=fitted.placed(point))
                judged[index] = Judged(there, fitted.predict(there.workload, there.placement))
    return [judged[index] for index in range(len(points))]


def at_host_speed(model: KernelModel, points: Sequence[MeasuredStep]) -> list[MeasuredStep]:
    """Estimate the host speed of the points, relative to the model's own.

    The speed at which the model fits most of them: hosts differ by a third, and only steps that
    wait for the host show it.
    """
    wrong = np.zeros(len(HOST_SPEEDS))
    for point in points:
        places = [replace(point.placement, host_speed=speed) for speed in HOST_SPEEDS]
        step_s = model.predict_many([point.workload], places).step_s[0]
        wrong += np.abs(np.log(step_s / point.step_s))
    speed = HOST_SPEEDS[int(wrong.argmin())]
    return [
        replace(point, placement=replace(point.placement, host_speed=speed)) for point in points
    ]
