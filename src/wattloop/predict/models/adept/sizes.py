"""Sizes of operations for the efficiency: tiles of products, channels and pixels, elements."""

import math
from collections.abc import Callable, Sequence

from wattloop.predict.workload.operation import Kind, Operation

__all__ = ["conv_sizes", "elements", "gemm_tiles", "weighted_means"]

TILES = {"bf16": (16, 8, 8), "fp16": (16, 8, 8)}
TF32_TILE = (16, 8, 4)
"""What one instruction of the matrix units multiplies (M, N, K) on Ampere, by the thesis; fp32,
which has none, is counted in tf32's."""
CHANNEL_BLOCK = 8


def weighted_means(
    operations: Sequence[Operation], sizes: Callable[[Operation], Sequence[float]], many: int
) -> tuple[float, ...]:
    """Equation 4.6: means over operations weighted by FLOPs; 0 where there is none."""
    totals = [0.0] * many
    flops = 0.0
    for op in operations:
        weight = op.count * op.flops
        flops += weight
        for i, size in enumerate(sizes(op)):
            totals[i] += weight * size
    return tuple(total / flops if flops else 0.0 for total in totals)


def gemm_tiles(op: Operation) -> tuple[float, float, float]:
    """M, N, K in ideal tiles."""
    tile_m, tile_n, tile_k = TILES.get(op.dtype, TF32_TILE)
    m, n, k = _gemm_dims(op)
    return m / tile_m, n / tile_n, k / tile_k


def conv_sizes(op: Operation) -> tuple[float, float]:
    """Channels of a group (mean of input and output) in blocks; pixels of one output image."""
    assert op.dims is not None  # convolutions have them, by the contract
    groups, positions, _, _ = op.dims
    channels = (_whole(op, "c_in") + _whole(op, "c_out")) / 2 / groups
    return channels / CHANNEL_BLOCK, positions / _whole(op, "n")


def elements(op: Operation) -> float:
    """Elements that an operation without products processes: what it writes."""
    given = op.detail.get("elements")
    if isinstance(given, int | float):
        return float(given)
    return float(sum(math.prod(shape) for shape in op.outputs))


def _gemm_dims(op: Operation) -> tuple[float, float, float]:
    if op.dims is not None:
        return op.dims[1], op.dims[2], op.dims[3]
    if op.kind is Kind.ATTENTION:  # the product of queries and keys
        return _whole(op, "q_len"), _whole(op, "kv_len"), _whole(op, "head_dim")
    gates = {"lstm": 4, "gru": 3}.get(str(op.detail.get("cell")), 1)
    hidden = _whole(op, "hidden")
    return _whole(op, "batch"), gates * hidden, hidden


def _whole(op: Operation, key: str) -> float:
    value = op.detail[key]
    assert isinstance(value, int | float), (op.op, key, value)
    return float(value)
