"""Which of a GPU's published peaks an operation could reach at best."""

from wattloop.hardware.gpus import Gpu
from wattloop.predict.workload.operation import Kind

__all__ = ["MATRIX_KINDS", "peak_flops_s"]

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
