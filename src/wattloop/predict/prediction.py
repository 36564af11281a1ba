"""What a model answers for a workload on a placement."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

__all__ = ["Interval", "Prediction", "Regime"]


class Regime(StrEnum):
    """What the step's time is mostly made of."""

    COMPUTE = "compute-bound"
    MEMORY = "memory-bound"
    LAUNCH = "launch-bound"
    COMMUNICATION = "communication-bound"
    DATA = "data-bound"


class Interval(NamedTuple):
    """Where the true value lies with the stated confidence."""

    low: float
    high: float
    confidence: float = 0.9


@dataclass(frozen=True, slots=True)
class Prediction:
    """One training step on one placement.

    Attributes:
        step_s: time of one optimizer step.
        power_w: mean power of one GPU over the step.
        gpus: GPUs that run it; energy is theirs together.
        regime: what bounds the step.
        terms_s: seconds of the step by part; which parts there are is the model's own matter.
        gpu_s, host_s: time the GPU is busy, time the host needs to dispatch (one GPU).
        far: how far the step's operations are from what calibration has measured, by GPU time: 0
            right there, 1 out of reach; None when the model does not say.
        clock_mhz: SM clock the GPU is thought to run at; None when the model does not say.
        step_interval, power_interval, energy_interval: None when the model knows no residuals.
        model: which model answered, and from which constants: `kernels (H200, calibrated)`.
        warnings: outside the calibrated range, spec-only constants, does not fit, ..., in words.
    """

    step_s: float
    power_w: float
    gpus: int = 1
    regime: Regime = Regime.COMPUTE
    terms_s: Mapping[str, float] = field(default_factory=dict)
    gpu_s: float | None = None
    host_s: float | None = None
    far: float | None = None
    clock_mhz: float | None = None
    step_interval: Interval | None = None
    power_interval: Interval | None = None
    energy_interval: Interval | None = None
    model: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def energy_j(self) -> float:
        """Energy of all GPUs over one step (scope: gpu)."""
        return self.step_s * self.power_w * self.gpus
