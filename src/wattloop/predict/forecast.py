"""Forecast: a prediction with throughput, memory, the node and the whole run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wattloop.predict.memory import MemoryFit
from wattloop.predict.node import NodePrediction
from wattloop.predict.prediction import Interval, Placement, Prediction
from wattloop.predict.run_total import PredictedAmount, RunTotal
from wattloop.predict.workload.operation import Phase
from wattloop.predict.workload.workload import Workload

PROVENANCE = "predicted"
COMPILE_START_S, COMPILE_KERNEL_S = 8.0, 0.045
"""Time of `torch.compile` by the kernels of forward and backward, read off 14 networks that were
compiled twelve at a time on 16 processors (torch 2.11, benchmarks/data/h200).
"""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Prediction for one request.

    Attributes:
        workload, placement: what runs, and where.
        prediction: time and power of a step, of one GPU; energy of all of them.
        estimator: which model answered.
        is_calibrated: False when constants come from the data sheet alone.
        memory: what one GPU needs, and has.
        top_operations_s: GPU seconds of the operations that take longest in a step, by name.
        notes: assumptions about model, inputs and loss.
        warnings: reasons for more uncertainty, or why the run is impossible.
        node: the whole node, when it was asked for.
        run: the whole run, when its steps are known.
    """

    workload: Workload
    placement: Placement
    prediction: Prediction
    estimator: str
    is_calibrated: bool
    memory: MemoryFit
    top_operations_s: Mapping[str, float]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    node: NodePrediction | None = None
    run: RunTotal | None = None

    @property
    def samples(self) -> int:
        return self.workload.samples * self.placement.gpus

    @property
    def throughput_samples_s(self) -> float:
        return self.samples / self.prediction.step_s

    @property
    def compile_s(self) -> float | None:
        """Return the time until a compiled model takes its first step; None for an eager one.

        Within a factor of two, for an empty cache of Inductor.
        """
        if not self.workload.compile_mode:
            return None
        kernels = sum(
            op.kernels * op.count
            for op in self.workload.operations
            if op.phase is not Phase.OPTIMIZER
        )
        return COMPILE_START_S + COMPILE_KERNEL_S * kernels

    @property
    def energy_j_per_sample(self) -> float:
        """Return the energy of the GPUs per sample (scope: gpu)."""
        return self.prediction.energy_j / self.samples

    @property
    def fits(self) -> bool:
        return self.memory.fits

    @property
    def all_warnings(self) -> tuple[str, ...]:
        short = not self.memory.fits or self.memory.tight
        own = (f"memory: {self.memory.words}",) if short else ()
        return tuple(dict.fromkeys((*own, *self.prediction.warnings, *self.warnings)))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; docs/predict.md describes it."""
        work, place, predicted = self.workload, self.placement, self.prediction
        return {
            "model": work.name,
            "training": work.training,
            "precision": work.precision,
            "optimizer": work.optimizer or None,
            "batch": work.batch,
            "accumulate": work.accumulate,
            "compile": work.compile_mode or None,
            "compile_s": self.compile_s,
            "parameters": work.parameters,
            "gpu": place.gpu.name,
            "gpus": place.gpus,
            "cap_w": place.cap_w,
            "locked_clock_mhz": place.clock_mhz,
            "host_speed": place.host_speed,
            "step_s": predicted.step_s,
            "power_w": predicted.power_w,
            "energy_j_per_step": predicted.energy_j,
            "throughput_samples_s": self.throughput_samples_s,
            "energy_j_per_sample": self.energy_j_per_sample,
            "memory_bytes": self.memory.needed_bytes,
            "tensor_bytes": work.peak_bytes,
            "available_bytes": self.memory.available_bytes,
            "fits": self.fits,
            "short_bytes": self.memory.short_bytes,
            "largest_batch": self.memory.largest_batch,
            "intervals": {
                "step_s": _interval(predicted.step_interval),
                "power_w": _interval(predicted.power_interval),
                "energy_j_per_step": _interval(predicted.energy_interval),
            },
            "regime": predicted.regime.value,
            "terms_s": dict(predicted.terms_s),
            "terms_j": dict(predicted.terms_j),
            "gpu_s": predicted.gpu_s,
            "host_s": predicted.host_s,
            "clock_mhz": predicted.clock_mhz,
            "top_operations_s": dict(self.top_operations_s),
            "estimator": self.estimator,
            "constants": predicted.model,
            "calibrated": self.is_calibrated,
            "provenance": PROVENANCE,
            "scope": "gpu",
            "node": None if self.node is None else _node(self.node),
            "run": None if self.run is None else _run(self.run),
            "notes": list(self.notes),
            "warnings": list(self.all_warnings),
        }


def _interval(interval: Interval | None) -> dict[str, float] | None:
    return None if interval is None else interval._asdict()


def _amount(amount: PredictedAmount | None) -> dict[str, Any] | None:
    if amount is None:
        return None
    return {"value": amount.value, "interval": _interval(amount.interval)}


def _node(node: NodePrediction) -> dict[str, Any]:
    return {
        "power_w": node.power_w,
        "power_interval": _interval(node.power_interval),
        "energy_j_per_step": node.energy_j,
        "parts_w": dict(node.parts_w),
        "scope": "node",
        "provenance": node.provenance.value,
        "assumptions": list(node.assumptions),
    }


def _run(run: RunTotal) -> dict[str, Any]:
    return {
        "steps": run.steps,
        "time_s": _amount(run.time_s),
        "energy_j": _amount(run.energy_j),
        "scope": run.scope,
        "pue": run.pue,
        "facility_j": _amount(run.facility_j),
        "cost": _amount(run.cost),
        "currency": run.currency,
        "cost_reason": run.cost_reason or None,
        "gpu_cost": _amount(run.gpu_cost),
        "carbon_g": _amount(run.carbon_g),
        "carbon_intensity": None if run.intensity is None else run.intensity._asdict(),
        "carbon_reason": run.carbon_reason or None,
        "notes": list(run.notes),
    }
