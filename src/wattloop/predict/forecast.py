"""A prediction with everything people ask beside it: throughput, memory, the whole run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wattloop.core.units import format_bytes
from wattloop.predict.placement import Placement
from wattloop.predict.prediction import Interval, Prediction
from wattloop.predict.workload.workload import Workload

__all__ = ["CONTEXT_BYTES", "PROVENANCE", "Forecast"]

PROVENANCE = "predicted"
CONTEXT_BYTES = 0.6e9
"""What a CUDA context with its libraries takes beside the tensors: 0.4 to 0.8 GB by GPU."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """One answer.

    Attributes:
        workload, placement: what runs, and where.
        prediction: time and power of a step, of one GPU; energy of all of them.
        estimator: which model answered.
        is_calibrated: False when constants come from the data sheet alone.
        top_operations_s: GPU seconds of the operations that take longest in a step, by name.
        notes: what was assumed of model, inputs and loss.
        warnings: what makes the answer less sure, or the run impossible.
    """

    workload: Workload
    placement: Placement
    prediction: Prediction
    estimator: str
    is_calibrated: bool
    top_operations_s: Mapping[str, float]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def samples(self) -> int:
        """Samples of one optimizer step of all GPUs together."""
        return self.workload.samples * self.placement.gpus

    @property
    def throughput_samples_s(self) -> float:
        """Samples a second of all GPUs together."""
        return self.samples / self.prediction.step_s

    @property
    def energy_j_per_sample(self) -> float:
        """Energy of the GPUs per sample (scope: gpu)."""
        return self.prediction.energy_j / self.samples

    @property
    def memory_bytes(self) -> float:
        """Tensors of one GPU at their most; with several GPUs also the buckets of gradients."""
        buckets = self.workload.gradient_bytes if self.placement.gpus > 1 else 0.0
        return self.workload.peak_bytes + buckets

    @property
    def missing_bytes(self) -> float:
        """By how much the memory of the GPU is too small; 0 when it fits."""
        return max(0.0, self.memory_bytes + CONTEXT_BYTES - self.placement.gpu.memory_bytes)

    @property
    def fits(self) -> bool:
        """Whether tensors and context fit into the memory of one GPU."""
        return self.missing_bytes == 0

    @property
    def all_warnings(self) -> tuple[str, ...]:
        """The model's, ours, and whether it fits."""
        own = () if self.fits else (self._does_not_fit(),)
        return tuple(dict.fromkeys((*own, *self.prediction.warnings, *self.warnings)))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; docs/predict.md describes it."""
        work, place, predicted = self.workload, self.placement, self.prediction
        return {
            "model": work.name,
            "training": work.training,
            "precision": work.precision,
            "optimizer": work.optimizer or None,
            "batch": work.batch,
            "accumulate": work.accumulate,
            "parameters": work.parameters,
            "gpu": place.gpu.name,
            "gpus": place.gpus,
            "cap_w": place.cap_w,
            "locked_clock_mhz": place.clock_mhz,
            "step_s": predicted.step_s,
            "power_w": predicted.power_w,
            "energy_j_per_step": predicted.energy_j,
            "throughput_samples_s": self.throughput_samples_s,
            "energy_j_per_sample": self.energy_j_per_sample,
            "memory_bytes": self.memory_bytes,
            "gpu_memory_bytes": place.gpu.memory_bytes,
            "fits": self.fits,
            "missing_bytes": self.missing_bytes,
            "intervals": {
                "step_s": _interval(predicted.step_interval),
                "power_w": _interval(predicted.power_interval),
                "energy_j_per_step": _interval(predicted.energy_interval),
            },
            "regime": predicted.regime.value,
            "terms_s": dict(predicted.terms_s),
            "gpu_s": predicted.gpu_s,
            "host_s": predicted.host_s,
            "clock_mhz": predicted.clock_mhz,
            "top_operations_s": dict(self.top_operations_s),
            "estimator": self.estimator,
            "constants": predicted.model,
            "calibrated": self.is_calibrated,
            "provenance": PROVENANCE,
            "scope": "gpu",
            "notes": list(self.notes),
            "warnings": list(self.all_warnings),
        }

    def _does_not_fit(self) -> str:
        gpu = self.placement.gpu
        return (
            f"does not fit: needs {format_bytes(self.memory_bytes)} and "
            f"{format_bytes(CONTEXT_BYTES)} for CUDA, the {gpu.product} has "
            f"{format_bytes(gpu.memory_bytes)}, {format_bytes(self.missing_bytes)} too little; "
            "lower --batch (with --accumulate the step stays as large), or use checkpointing"
        )


def _interval(interval: Interval | None) -> dict[str, float] | None:
    return None if interval is None else interval._asdict()
