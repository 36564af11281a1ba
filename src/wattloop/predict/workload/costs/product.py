"""Matrix products."""

from dataclasses import replace
from typing import Unpack

from wattloop.predict.workload.costs.context import OpContext, element_bytes, operation, start
from wattloop.predict.workload.operation import Kind, Operation


def gemm(
    b: int,
    m: int,
    n: int,
    k: int,
    *,
    dtype: str,
    layout: str = "nn",
    bias: bool = False,
    **place: Unpack[OpContext],
) -> Operation:
    """A batch of B products of M x K with K x N into row-major M x N.

    A linear layer's forward is `nt` (its weight is stored N x K), the gradient of its input `nn`,
    the gradient of its weight `tn`. A bias is added in the same kernel.
    """
    size = element_bytes(dtype)
    made = replace(
        start(Kind.GEMM, "aten.bmm" if b > 1 else ("aten.addmm" if bias else "aten.mm"), dtype),
        flops=2.0 * b * m * n * k,
        bytes_read=float(size) * (b * (m * k + k * n) + (n if bias else 0)),
        bytes_written=float(size) * b * m * n,
        dims=(b, m, n, k),
    )
    return operation(made, place, {"layout": layout, "bias": bias})
