"""Cached workloads, and vectorised predictions of time and power on placements with intervals.

`predict` takes a millisecond per pair, mostly for the breakdown and texts. This module computes
only the parts that depend on the placement: time, power, and the waiting share and power level that
determine the width of an interval (`predict.intervals`).
"""

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from threading import Lock
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from wattloop.hardware.gpus import Gpu
from wattloop.predict.forecaster import estimator_for
from wattloop.predict.intervals import (
    CONFIDENCE,
    HOST_SHARE,
    HostedStep,
    Intervals,
    kinds_of,
    most_power_w,
    spread_of,
    traits_at,
)
from wattloop.predict.memory import memory_fit
from wattloop.predict.models.kernels import KernelModel
from wattloop.predict.models.kernels.step import (
    StepBatch,
    StepProfile,
    StepResults,
    all_pairs,
    step_results,
)
from wattloop.predict.prediction import Placement
from wattloop.predict.workload.workload import Workload
from wattloop.schedule.estimates.analytic import kind_workload
from wattloop.schedule.estimates.fleet_file import BackgroundCache
from wattloop.schedule.estimates.job_estimator import WorkloadKey
from wattloop.schedule.jobs.kind import JobKind

Floats = NDArray[np.float64]
QUANTITIES = ("time", "power", "energy")


class PairFigures(NamedTuple):
    """Figures of each placement.

    Attributes:
        power_w: mean power of one GPU.
        factors: quantity -> with 90% confidence the true value is within value / factor and value x
        factor; a quantity with an unknown factor is absent.
    """

    step_s: Floats
    power_w: Floats
    factors: dict[str, Floats]


class GpuWorkload:
    """Workload on one GPU type, with everything that does not depend on the placement."""

    def __init__(self, model: KernelModel, workload: Workload, gpu: Gpu) -> None:
        one = model.predict(workload, Placement(gpu))
        self.source = one.model
        self.warnings = one.warnings
        self.values = model.kernel_constants.values
        self.profile: StepProfile = model.profile(workload, gpu)
        self._intervals = model.intervals
        self._kinds = kinds_of(one)
        self._hosts = model.hosts(workload)
        self._distance = 1.0
        if self._intervals is not None and self._intervals.scope is not None:
            self._distance = self._intervals.scope.distance(workload, Placement(gpu)).factor

    def figures(self, placements: Sequence[Placement]) -> PairFigures:
        return predict_pairs([self], [placements])[0]

    def factors(self, steps: StepBatch, result: StepResults) -> dict[str, Floats]:
        if self._intervals is None:
            return {}
        traits = traits_at(result.power_w / steps.cap_w, result.gpu_s / result.step_s, self._kinds)
        is_host = steps.host_s >= HOST_SHARE * result.step_s
        rest_w = self.values["power.idle_w"] + self.values["power.static_w"]
        step = HostedStep(result.step_s, result.gpu_s, steps.host_s, rest_w / result.power_w)
        found = {
            name: self._factors(self._intervals, name, traits, is_host, step) for name in QUANTITIES
        }
        return {name: values for name, values in found.items() if values is not None}

    def _factors(
        self,
        intervals: Intervals,
        quantity: str,
        traits: Mapping[str, Floats | np.float64],
        is_host: NDArray[np.bool_],
        step: HostedStep,
    ) -> Floats | None:
        """Return the wider side of the intervals, for a host of unknown speed."""
        halves = [intervals.half_width(quantity, key, CONFIDENCE) for key in ("gpu", "host")]
        if halves[0] is None or halves[1] is None:
            return None
        half = np.where(is_host, halves[1], halves[0])
        spread: Floats | np.float64 = np.float64(1.0)
        if quantity in intervals.spreads:
            spread = spread_of(intervals.spreads[quantity], traits)
        half = half * spread * self._distance
        if self._hosts is not None:
            half = np.maximum(*self._hosts.widened(quantity, half, step))
        return np.asarray(np.exp(half), dtype=np.float64)


def predict_pairs(
    workloads: Sequence[GpuWorkload], placements: Sequence[Sequence[Placement]]
) -> list[PairFigures]:
    """Predict several workloads on one GPU type together, each on its own placements."""
    alike: dict[tuple[int, ...], list[int]] = {}
    for number, wanted in enumerate(placements):  # usually all workloads have the same placements
        alike.setdefault(tuple(map(id, wanted)), []).append(number)
    groups = list(alike.values())
    parts = [
        all_pairs(
            [workloads[number].profile for number in group],
            placements[group[0]],
            workloads[group[0]].values,
        )
        for group in groups
    ]
    steps = StepBatch.joined(parts)
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


R = TypeVar("R", StepBatch, StepResults)


def _rows(columns: R, begin: int, end: int) -> R:
    return type(columns)(*(getattr(columns, each.name)[begin:end] for each in fields(columns)))


MOST_WORKLOADS = 300
"""Most workloads in memory, some megabytes each; more are in the user's cache folder."""
MOST_FIGURES = 200_000
"""Most cached pairs: schedulers repeat the same queries every round."""
MUCH_NEW = 2_000
"""Figures after which it is worth to settle; a workload on a GPU weighs as much."""


Trace = Callable[[WorkloadKey], Workload]
"""Function that traces the workload of a key, or raises a `ConfigError` with the reason."""


class WorkloadFigure(NamedTuple):
    """Prediction of a workload on a placement.

    Attributes:
        refused: why it does not run there; empty when it does.
        samples_s: throughput of all GPUs together.
        power_w: power of all GPUs together.
        most_w: power at their limit, with the tolerance of GPUs.
        factors: quantity -> interval factor (see `PairFigures`).
    """

    refused: str
    samples_s: float
    power_w: float
    most_w: float
    factors: Mapping[str, float]
    source: str


class PlacementKey:
    """Interned placement: a fast key, the same object in every query."""

    __slots__ = ("placement",)

    def __init__(self, placement: Placement) -> None:
        self.placement = placement


class WorkloadEstimates:
    """Cache of traced workloads and their predictions on placements."""

    def __init__(self, trace: Trace | None = None) -> None:
        make = traced_workload if trace is None else trace
        self._workloads: BackgroundCache[WorkloadKey, Workload] = BackgroundCache(
            make, most=MOST_WORKLOADS
        )
        self._models: dict[Gpu, KernelModel] = {}
        self._on: dict[tuple[WorkloadKey, Gpu], tuple[Workload, GpuWorkload]] = {}
        self._spots: dict[Placement, PlacementKey] = {}
        self._figures: dict[tuple[WorkloadKey, PlacementKey], WorkloadFigure] = {}
        self._lock = Lock()
        self._new = 0

    def workload(self, key: WorkloadKey, wait_s: float | None) -> Workload | None:
        """Return the traced step; None if tracing takes longer than `wait_s`."""
        if wait_s is None:
            return self._workloads.get(key)
        return self._workloads.soon(key, wait_s)

    def on(self, key: WorkloadKey, workload: Workload, gpu: Gpu) -> GpuWorkload:
        with self._lock:
            known = self._on.get((key, gpu))
            if known is None or known[0] is not workload:
                if len(self._on) >= 4 * MOST_WORKLOADS:
                    # models hold profiles of dropped workloads
                    self._on.clear()
                    self._models.clear()
                known = self._on[key, gpu] = (
                    workload,
                    GpuWorkload(self._model(gpu), workload, gpu),
                )
                self._new += MUCH_NEW
            return known[1]

    def spot(self, placement: Placement) -> PlacementKey:
        return self._spots.setdefault(placement, PlacementKey(placement))

    def figures(
        self, wanted: Mapping[WorkloadKey, tuple[Workload, Sequence[PlacementKey]]]
    ) -> dict[tuple[WorkloadKey, PlacementKey], WorkloadFigure]:
        """Predict workloads on their placements of one GPU type, using cached figures."""
        found: dict[tuple[WorkloadKey, PlacementKey], WorkloadFigure] = {}
        new: dict[WorkloadKey, tuple[GpuWorkload, Workload, list[PlacementKey]]] = {}
        for key, (workload, spots) in wanted.items():
            missing = []
            for spot in spots:
                known = self._figures.get((key, spot))
                if known is None:
                    missing.append(spot)
                else:
                    found[key, spot] = known
            if missing:
                on = self.on(key, workload, missing[0].placement.gpu)
                new[key] = (on, workload, missing)
        if new:
            computed = _computed(new)
            if len(self._figures) > MOST_FIGURES:
                self._figures.clear()
                self._spots.clear()
            self._figures.update(computed)
            self._new += len(computed)
            found.update(computed)
        return found

    def settle(self) -> bool:
        """Exclude cached objects from garbage collection; return True if there were new ones.

        Workloads have a hundred thousand objects. Python's garbage collector would scan them every
        few queries, for 70 ms each time.
        """
        if self._new < MUCH_NEW:
            return False
        self._new = 0
        gc.collect()
        gc.freeze()
        return True

    def _model(self, gpu: Gpu) -> KernelModel:
        if gpu not in self._models:
            found = estimator_for(gpu, "kernels", None)
            assert isinstance(found, KernelModel)
            self._models[gpu] = found
        return self._models[gpu]


def _computed(
    wanted: Mapping[WorkloadKey, tuple[GpuWorkload, Workload, list[PlacementKey]]],
) -> dict[tuple[WorkloadKey, PlacementKey], WorkloadFigure]:
    rows = list(wanted.items())
    places = [[spot.placement for spot in spots] for _, (_, _, spots) in rows]
    figures = predict_pairs([row[0] for _, row in rows], places)
    found = {}
    for (key, (on, workload, spots)), figure in zip(rows, figures, strict=True):
        step_s, power_w = figure.step_s.tolist(), figure.power_w.tolist()
        factors = {name: values.tolist() for name, values in figure.factors.items()}
        refused: dict[int, str] = {}
        for column, spot in enumerate(spots):
            gpus = spot.placement.gpus
            if gpus not in refused:
                refused[gpus] = _why_not(workload, spot.placement)
            found[key, spot] = WorkloadFigure(
                refused=refused[gpus],
                samples_s=workload.samples * gpus / step_s[column],
                power_w=power_w[column] * gpus,
                most_w=gpus * most_power_w(spot.placement),
                factors={name: values[column] for name, values in factors.items()},
                source=on.source,
            )
    return found


def _why_not(workload: Workload, placement: Placement) -> str:
    """Return why the workload does not run on the placement; empty when it does."""
    if workload.precision == "bf16" and "bf16" not in placement.gpu.matrix_flops:
        return f"the {placement.gpu.product} has no bfloat16 units"
    fit = memory_fit(workload, placement.gpu, placement.gpus, placement.zero)
    return "" if fit.fits else f"memory: {fit.words}"


def traced_workload(key: WorkloadKey) -> Workload:
    kind = JobKind(key.model, key.precision, sequence=key.sequence)
    return kind_workload(kind, key.batch)
