"""Interface of all models of time and power."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

from wattloop.hardware.gpus import Gpu
from wattloop.predict.prediction import Placement, Prediction
from wattloop.predict.workload.operation import MATRIX_KINDS, Kind
from wattloop.predict.workload.workload import Workload


def peak_flops_s(gpu: Gpu, kind: Kind, dtype: str) -> float:
    """Return the FLOP/s of the unit that runs an operation of this kind in this arithmetic.

    A GPU whose matrix units lack the arithmetic (tf32 before Ampere, bf16 before Ampere) runs the
    product on its ordinary units; ordinary units that lack it compute in fp32.
    """
    if kind in MATRIX_KINDS and dtype in gpu.matrix_flops:
        return gpu.matrix_flops[dtype]
    return gpu.vector_flops.get(dtype) or gpu.vector_flops["fp32"]


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """Measured training step, to fit a model to or to evaluate it.

    Attributes:
        workload, placement: what ran, and where.
        step_s, power_w: measured time of a step and mean power of one GPU; power may be unknown.
        group: the model it belongs to, without size and batch; leave-one-model-out leaves out a
            group.
        host: session of the measurement. Points of the unnamed one have the speed of their
            placement; a fit estimates the speed of the others.
        host_s: phase -> time the host needed to ask for it, where that was measured.
    """

    workload: Workload
    placement: Placement
    step_s: float
    power_w: float | None
    group: str
    host: str = ""
    host_s: Mapping[str, float] = field(default_factory=dict)


class Model(ABC):
    """Model of time and power of a workload on a placement."""

    name: ClassVar[str]

    @abstractmethod
    def fit(self, points: Sequence[MeasuredStep]) -> Self:
        """Return a model with constants fitted to `points`; this one is not changed."""

    @abstractmethod
    def predict(self, workload: Workload, placement: Placement) -> Prediction:
        """Predict time, power and their terms."""

    def placed(self, point: MeasuredStep) -> Placement:
        """Return the placement of `point`, as far as this model knows its host."""
        return point.placement

    @abstractmethod
    def constants(self) -> Mapping[str, object]:
        """Return the fitted constants as plain values for a file."""
