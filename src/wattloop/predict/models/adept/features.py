"""Features of a workload on a GPU for ADEPT (thesis 4.3.4): one number per row and feature."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from wattloop.predict.models.model import peak_flops_s
from wattloop.predict.prediction import Placement
from wattloop.predict.workload.costs.optimizer import OPTIMIZERS
from wattloop.predict.workload.operation import DTYPE_BYTES, MATRIX_KINDS, Kind, Operation, Phase
from wattloop.predict.workload.workload import Workload

TILES = {"bf16": (16, 8, 8), "fp16": (16, 8, 8)}
TF32_TILE = (16, 8, 4)
"""What one instruction of the matrix units multiplies (M, N, K) on Ampere, by the thesis; fp32,
which has none, is counted in tf32's."""
CHANNEL_BLOCK = 8


def weighted_means(
    operations: Sequence[Operation], sizes: Callable[[Operation], Sequence[float]], many: int
) -> tuple[float, ...]:
    """Return equation 4.6: means over operations weighted by FLOPs; 0 without operations."""
    totals = [0.0] * many
    flops = 0.0
    for op in operations:
        weight = op.count * op.flops
        flops += weight
        for i, size in enumerate(sizes(op)):
            totals[i] += weight * size
    return tuple(total / flops if flops else 0.0 for total in totals)


def gemm_tiles(op: Operation) -> tuple[float, float, float]:
    tile_m, tile_n, tile_k = TILES.get(op.dtype, TF32_TILE)
    m, n, k = _gemm_dims(op)
    return m / tile_m, n / tile_n, k / tile_k


def conv_sizes(op: Operation) -> tuple[float, float]:
    """Channels of a group (mean of input and output) in blocks; pixels of one output image."""
    groups, positions, c_out, c_in = op.dims or (1, 1, 1, 1)
    # A user's rule may omit the detail; its dims are a close substitute.
    channels = (_number(op, "c_in", c_in * groups) + _number(op, "c_out", c_out * groups)) / 2
    return channels / groups / CHANNEL_BLOCK, positions / _number(op, "n")


def elements(op: Operation) -> float:
    """Return the elements that an operation without products processes: those it writes."""
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


Array = NDArray[np.float64]
ADAMW_FLOPS = 18
"""Per parameter, by the thesis; those of other optimizers are counted off their update rules."""


@dataclass(frozen=True, slots=True)
class AdeptFeatures:
    """Features of all rows; every field is an array with one entry per row.

    Attributes:
        gemm_s, conv_s, alu_s: FLOPs of one pass over the peak of their unit.
        memory_s: bytes of one pass over the bandwidth.
        tiles_m, tiles_n, tiles_k: FLOP-weighted mean dimensions of products, in ideal tiles.
        conv_channels, conv_pixels: the same of convolutions.
        elements: elements that other operations process in one pass.
        working_set: mean bytes of a launch of the pass over the size of the L2 cache.
        optimizer_compute_s, optimizer_memory_s: 18 N_p (AdamW) over the peak, 4.4 + 4.5 over the
            bandwidth.
        kernels: launches of the whole step.
        passes: G_acc.
        gpus: N_g.
        gradient_s: size of the gradients over the link's bandwidth, one way; 0 on one GPU.
        limit_w: P_TDP, or the cap where one is set.
        albert, bf16: 1 where their scalars hold, else 0.
    """

    gemm_s: Array
    conv_s: Array
    alu_s: Array
    memory_s: Array
    tiles_m: Array
    tiles_n: Array
    tiles_k: Array
    conv_channels: Array
    conv_pixels: Array
    elements: Array
    working_set: Array
    optimizer_compute_s: Array
    optimizer_memory_s: Array
    kernels: Array
    passes: Array
    gpus: Array
    gradient_s: Array
    limit_w: Array
    albert: Array
    bf16: Array

    @classmethod
    def of(cls, rows: Iterable[tuple[Workload, Placement]]) -> "AdeptFeatures":
        found = [_row(workload, placement) for workload, placement in rows]
        return cls(*(np.array([row[f.name] for row in found], float) for f in fields(cls)))

    def take(self, rows: Sequence[int]) -> "AdeptFeatures":
        return AdeptFeatures(*(getattr(self, f.name)[list(rows)] for f in fields(self)))


def optimizer_bytes(parameters: float, optimizer: str, precision: str) -> tuple[float, float]:
    """Return equations 4.4 and 4.5: bytes that an optimizer step reads and writes."""
    rule = OPTIMIZERS.get(optimizer, OPTIMIZERS["adamw"])
    gradient = DTYPE_BYTES["bf16"] if precision in ("bf16", "fp16") else DTYPE_BYTES["fp32"]
    weights = DTYPE_BYTES["fp32"] * (1 + rule.states)
    return parameters * (weights + gradient), parameters * weights


def optimizer_flops(parameters: float, optimizer: str) -> float:
    """Return 18 N_p for AdamW, and for optimizers without a rule."""
    rule = OPTIMIZERS.get(optimizer)
    if rule is None or optimizer == "adamw":
        return parameters * ADAMW_FLOPS
    return parameters * sum(each.flops for each in rule.passes)


def _row(workload: Workload, placement: Placement) -> dict[str, float]:
    one_pass = [op for op in workload.operations if op.phase is not Phase.OPTIMIZER]
    update = [op for op in workload.operations if op.phase is Phase.OPTIMIZER]
    return {
        **_compute(one_pass, placement),
        **_memory(one_pass, placement),
        **_optimizer(workload, placement),
        "kernels": workload.accumulate * _launches(one_pass) + _launches(update),
        "passes": workload.accumulate,
        "gpus": placement.gpus,
        "limit_w": placement.cap_w or placement.gpu.tdp_w,
        "albert": "albert" in workload.name.lower(),
        "bf16": workload.precision == "bf16",
    }


def _compute(one_pass: Sequence[Operation], placement: Placement) -> dict[str, float]:
    gemms = [op for op in one_pass if op.kind in MATRIX_KINDS and op.kind is not Kind.CONV]
    convs = [op for op in one_pass if op.kind is Kind.CONV]
    others = [op for op in one_pass if op.kind not in MATRIX_KINDS]

    def at_peak_s(operations: Sequence[Operation]) -> float:
        return sum(
            op.count * op.flops / peak_flops_s(placement.gpu, op.kind, op.dtype)
            for op in operations
        )

    tiles_m, tiles_n, tiles_k = weighted_means(gemms, gemm_tiles, 3)
    channels, pixels = weighted_means(convs, conv_sizes, 2)
    return {
        "gemm_s": at_peak_s(gemms),
        "conv_s": at_peak_s(convs),
        "alu_s": at_peak_s(others),
        "tiles_m": tiles_m,
        "tiles_n": tiles_n,
        "tiles_k": tiles_k,
        "conv_channels": channels,
        "conv_pixels": pixels,
        "elements": sum(op.count * elements(op) for op in others),
    }


def _memory(one_pass: Sequence[Operation], placement: Placement) -> dict[str, float]:
    moved = sum(op.count * op.bytes_moved for op in one_pass)
    return {
        "memory_s": moved / placement.gpu.memory_bytes_s,
        "working_set": moved / max(_launches(one_pass), 1) / placement.gpu.l2_bytes,
    }


def _optimizer(workload: Workload, placement: Placement) -> dict[str, float]:
    gpu = placement.gpu
    # Frozen or forward-only models have no update and no gradients to share.
    trained = workload.parameters if workload.training and workload.optimizer else 0
    read, written = optimizer_bytes(trained, workload.optimizer, workload.precision)
    shared = workload.gradient_bytes if trained and placement.gpus > 1 else 0.0
    link = placement.link_bytes_s or gpu.link_bytes_s / 2 or gpu.pcie_bytes_s
    return {
        "optimizer_compute_s": optimizer_flops(trained, workload.optimizer)
        / gpu.vector_flops["fp32"],
        "optimizer_memory_s": (read + written) / gpu.memory_bytes_s,
        "gradient_s": shared / link if shared else 0.0,
    }


def _launches(operations: Sequence[Operation]) -> int:
    return sum(op.count * op.kernels for op in operations)
