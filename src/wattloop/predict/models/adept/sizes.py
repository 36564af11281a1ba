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
    groups, positions, c_out, c_in = op.dims or (1, 1, 1, 1)
    # A rule of a user's own may leave the detail out: its dims tell nearly as much.
    channels = (_number(op, "c_in", c_in * groups) + _number(op, "c_out", c_out * groups)) / 2
    return channels / groups / CHANNEL_BLOCK, positions / _number(op, "n")


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
        return _number(op, "q_len"), _number(op, "kv_len"), _number(op, "head_dim")
    gates = {"lstm": 4, "gru": 3}.get(str(op.detail.get("cell")), 1)
    hidden = _number(op, "hidden")
    return _number(op, "batch"), gates * hidden, hidden


def _number(op: Operation, key: str, otherwise: float = 1.0) -> float:
    value = op.detail.get(key)
    return float(value) if isinstance(value, int | float) and value > 0 else otherwise
