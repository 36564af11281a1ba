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
from wattloop.predict.models.kernels.least_squares import minimise
from wattloop.predict.models.kernels.operations import operation_times, scale_scopes
from wattloop.predict.models.kernels.power_fit import Draw, with_power
from wattloop.predict.models.kernels.profile import Prepared, StepProfile, profile_of
from wattloop.predict.models.kernels.step import step_results
from wattloop.predict.models.kernels.table import Floats
from wattloop.predict.models.kernels.values import Values
from wattloop.predict.models.model import Point
from wattloop.predict.workload.workload import Workload

__all__ = ["fitted_to_points"]

TURNS = 2
PRIOR_UNCALIBRATED = 0.5
PRIOR_CALIBRATED = 0.12
"""Standard deviation, in logarithms, of a family's factor before and after microbenchmarks."""
PRIOR_TINY = 1.0
"""Of windows over tiny pictures in fp32: cuDNN's choices for them are like none measured."""
PRIOR_HOST = 0.25
"""The same for a single cost of the host, beside the others of its phase."""
HOST_SHARED = ("forward", "backward", "optimizer", "")
PRIOR_HOST_SHARED = 0.6
"""How far all costs of a phase may be off together: hosts differ."""


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
        constants = _with_time(constants, rows, calibrated=calibrated)
        values = with_power(constants.values, _draws(constants, rows))
        constants = replace(constants, values=values)
    return start.fitted(constants.values)


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
) -> KernelConstants:
    rows = _Rows.of(constants, points)
    values = constants.values
    known = np.array([values.look("scale", name) for name in rows.names])
    base = rows.seconds / np.exp(known)
    host = _Hosts.of([prepared for _, prepared in points], values)
    speed = np.array([point.placement.host_speed for point, _ in points])
    sharpness = values["host.overlap"]
    prior_s = PRIOR_CALIBRATED if calibrated else PRIOR_UNCALIBRATED
    families = [PRIOR_TINY if name == "tiny.fp32" else prior_s for name in rows.names]
    prior = np.concatenate([families, host.prior])

    def residuals(x: Floats) -> Floats:
        gpu_s = base @ np.exp(x[: len(known)])
        host_s = host.seconds(x[len(known) :]) / speed
        longer, shorter = np.maximum(gpu_s, host_s), np.minimum(gpu_s, host_s)
        step_s = longer * (1 + (shorter / longer) ** sharpness) ** (1 / sharpness)
        return np.asarray(np.log(step_s / rows.measured_s), dtype=np.float64)

    found = minimise(residuals, np.zeros(len(prior)), prior)
    changes = {f"scale.{name}": float(x) for name, x in zip(rows.names, found, strict=False)}
    return constants.with_values({**changes, **host.changes(found[len(known) :])})


@dataclass(frozen=True, slots=True)
class _Hosts:
    """Costs of the host as factors on what they were: some shared by a phase, then each its own."""

    names: list[str]
    prices: Floats
    counts: Floats
    shared: Floats

    @classmethod
    def of(cls, workloads: Sequence[Prepared], values: Values) -> "_Hosts":
        steps = [p.counts.of_step(p.workload.accumulate) for p in workloads]
        # Costs that no point has are of the same host: they move with their phase.
        known = {name for name in values.numbers if name.startswith("host.") and "_s" in name}
        names = sorted(known | {name for step in steps for name in step})
        counts = np.array([[step.get(name, 0.0) for name in names] for step in steps])
        shared = np.zeros((len(names), len(HOST_SHARED)))
        for row, name in enumerate(names):
            shared[row, [part in name for part in HOST_SHARED].index(True)] = 1.0
        return cls(names, np.array([values.look(name) for name in names]), counts, shared)

    @property
    def prior(self) -> Floats:
        """Of the factors' logarithms, shared ones first."""
        together = np.full(len(HOST_SHARED), PRIOR_HOST_SHARED)
        return np.concatenate([together, np.full(len(self.names), PRIOR_HOST)])

    def priced(self, x: Floats) -> Floats:
        """Seconds of each cost."""
        wide: Floats = self.shared @ x[: len(HOST_SHARED)] + x[len(HOST_SHARED) :]
        return self.prices * np.exp(wide)

    def seconds(self, x: Floats) -> Floats:
        """Host time of each point."""
        total: Floats = self.counts @ self.priced(x)
        return total

    def changes(self, x: Floats) -> dict[str, float]:
        """The costs by name."""
        return dict(zip(self.names, self.priced(x).tolist(), strict=True))


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
