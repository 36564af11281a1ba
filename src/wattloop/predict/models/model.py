"""The contract of all models of time and power."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

from wattloop.hardware.gpus import Gpu
from wattloop.predict.prediction import Placement, Prediction
from wattloop.predict.workload.operation import Kind
from wattloop.predict.workload.workload import Workload

MATRIX_KINDS = frozenset({Kind.GEMM, Kind.CONV, Kind.ATTENTION, Kind.RNN})
"""Products, which matrix units take where they know the arithmetic."""


def peak_flops_s(gpu: Gpu, kind: Kind, dtype: str) -> float:
    """FLOP/s of the unit that runs an operation of this kind in this arithmetic.

    A GPU whose matrix units lack the arithmetic (tf32 before Ampere, bf16 before Ampere) runs the
    product on its ordinary units; ordinary units that lack it compute in fp32.
    """
    if kind in MATRIX_KINDS and dtype in gpu.matrix_flops:
        return gpu.matrix_flops[dtype]
    return gpu.vector_flops.get(dtype) or gpu.vector_flops["fp32"]


@dataclass(frozen=True, slots=True)
class Point:
    """One measured training step, to fit a model to or to judge it by.

    Attributes:
        workload, placement: what ran, and where.
        step_s, power_w: measured time of a step and mean power of one GPU; power may be unknown.
        group: the model it belongs to, without size and batch; leave-one-model-out leaves out a
            group.
        host: the sitting it was measured in. Points of the nameless one are at the speed that
            their placement says; how quick others were, a fit finds from their points.
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
    """Time and power of a workload on a placement."""

    name: ClassVar[str]

    @abstractmethod
    def fit(self, points: Sequence[Point]) -> Self:
        """A model with constants fitted to `points`; this one is left as it was."""

    @abstractmethod
    def predict(self, workload: Workload, placement: Placement) -> Prediction:
        """Time, power and what they are made of."""

    def placed(self, point: Point) -> Placement:
        """Where `point` was measured, as far as this model knows its host."""
        return point.placement

    @abstractmethod
    def explain(self, workload: Workload, placement: Placement) -> Mapping[str, float]:
        """The numbers behind a prediction, by name with unit, in the order people read them."""

    @abstractmethod
    def constants(self) -> Mapping[str, object]:
        """What `fit` found, as plain values for a file."""
