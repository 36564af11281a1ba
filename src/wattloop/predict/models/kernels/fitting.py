"""Fit to measured training steps: what microbenchmarks cannot say, or did not.

Time: a factor per family and precision (pulled towards 1), and the host's costs. Power: watts
and joules of work. Both in logarithms with a robust loss, in turns, because power decides the
clock and time decides the power.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattloop.predict.models.kernels.batch import all_pairs
from wattloop.predict.models.kernels.constants import KernelConstants
from wattloop.predict.models.kernels.host_fit import HostFit
from wattloop.predict.models.kernels.least_squares import minimise
from wattloop.predict.models.kernels.operations import operation_times, scale_scopes
from wattloop.predict.models.kernels.power_fit import Draw, with_power
from wattloop.predict.models.kernels.profile import Prepared, StepProfile, profile_of
from wattloop.predict.models.kernels.step import step_results
from wattloop.predict.models.kernels.table import Floats
from wattloop.predict.models.model import Point
from wattloop.predict.workload.workload import Workload

__all__ = ["fitted_to_points"]

TURNS = 2
PRIOR_UNCALIBRATED = 0.5
PRIOR_CALIBRATED = 0.12
"""Standard deviation, in logarithms, of a family's factor before and after microbenchmarks."""
PRIOR_TINY = 1.0
"""Of windows over tiny pictures in fp32: cuDNN's choices for them are like none measured."""
ASKED_WEIGHT = 0.5
"""How much a measured dispatch time counts, of which a step has three."""


def fitted_to_points(
    constants: KernelConstants,
    points: Sequence[Point],
    prepare: Callable[[Workload], Prepared] = Prepared.of,
) -> KernelConstants:
    """`constants` with factors, host costs and power fitted to `points`."""
    rows = [(point, prepare(point.workload)) for point in points]
    start = constants = constants.unfitted()
    calibrated = bool(constants.made.get("microbenchmarks"))
    for _ in range(TURNS):
        constants, rows = _with_time(constants, rows, calibrated=calibrated)
        values = with_power(constants.values, _draws(constants, rows))
        constants = replace(constants, values=values)
    hosts = {point.host: point.placement.host_speed for point, _ in rows if point.host}
    return replace(start.fitted(constants.values), made={**start.made, "hosts": hosts})


_Row = tuple[Point, Prepared]


@dataclass(frozen=True, slots=True)
class _Rows:
    """Points with the seconds of each family apart, so that factors can be tried quickly."""

    profiles: list[StepProfile]
    names: list[str]
    seconds: Floats
    stretch: Floats
    measured_s: Floats

    @classmethod
    def of(cls, constants: KernelConstants, points: Sequence[_Row]) -> "_Rows":
        values, residuals = constants.values, constants.residuals
        profiles, by_row, stretch = [], [], []
        for point, prepared in points:
            gpu, accumulate = point.placement.gpu, float(point.workload.accumulate)
            table = prepared.table
            times = operation_times(table, values, residuals, gpu)
            total = times.seconds * table.count * np.where(table.optimizer, 1.0, accumulate)
            profile = profile_of(prepared, gpu, values, residuals)
            steps = all_pairs([profile], [point.placement])
            share = float(step_results(steps, values).clock_share[0])
            sums: dict[str, float] = {}
            for scope, seconds, slows in zip(
                scale_scopes(table), total.tolist(), times.compute.tolist(), strict=True
            ):
                sums[scope] = sums.get(scope, 0.0) + seconds / (share if slows else 1.0)
            profiles.append(profile)
            by_row.append(sums)
            stretch.append(share)
        names = sorted({name for sums in by_row for name in sums})
        seconds = np.array([[sums.get(name, 0.0) for name in names] for sums in by_row])
        measured = np.array([point.step_s for point, _ in points])
        return cls(profiles, names, seconds, np.array(stretch), measured)


def _with_time(
    constants: KernelConstants, points: Sequence[_Row], *, calibrated: bool
) -> tuple[KernelConstants, list[_Row]]:
    """Constants, and the points at the speeds of their hosts."""
    rows = _Rows.of(constants, points)
    values = constants.values
    known = np.array([values.look("scale", name) for name in rows.names])
    base = rows.seconds / np.exp(known)
    host = HostFit.of(points, values)
    sharpness = values["host.overlap"]
    prior_s = PRIOR_CALIBRATED if calibrated else PRIOR_UNCALIBRATED
    families = [PRIOR_TINY if name == "tiny.fp32" else prior_s for name in rows.names]
    prior = np.concatenate([families, host.prior])

    def residuals(x: Floats) -> Floats:
        gpu_s = base @ np.exp(x[: len(known)])
        asked_s = host.seconds(x[len(known) :])
        host_s = asked_s.sum(axis=1)
        longer, shorter = np.maximum(gpu_s, host_s), np.minimum(gpu_s, host_s)
        step_s = longer * (1 + (shorter / longer) ** sharpness) ** (1 / sharpness)
        steps = np.log(step_s / rows.measured_s)
        return np.concatenate([steps, ASKED_WEIGHT * host.asked_residuals(asked_s)])

    found = minimise(residuals, np.zeros(len(prior)), prior)
    changes = {f"scale.{name}": float(x) for name, x in zip(rows.names, found, strict=False)}
    asked = found[len(known) :]
    placed = [
        (replace(point, placement=replace(point.placement, host_speed=speed)), prepared)
        for (point, prepared), speed in zip(points, host.speeds(asked).tolist(), strict=True)
    ]
    return constants.with_values({**changes, **host.changes(asked)}), placed


def _draws(constants: KernelConstants, points: Sequence[_Row]) -> list[Draw]:
    """The points whose power is known, with the clock that the constants give them."""
    draws = []
    for point, prepared in points:
        if point.power_w is None:
            continue
        gpu, placement = point.placement.gpu, point.placement
        profile = profile_of(prepared, gpu, constants.values, constants.residuals)
        share = step_results(all_pairs([profile], [placement]), constants.values).clock_share[0]
        cap_w = placement.cap_w or gpu.tdp_w
        draws.append(Draw(profile.work, point.step_s, point.power_w, float(share), cap_w))
    return draws
