"""Operation of a training step on the GPU: kind, shapes, FLOPs and bytes.

`dims` and `detail` hold what decides which kernel runs; their keys are fixed per kind, because
cost rules write them, microbenchmarks are described by them and models read them:

    gemm       dims (B, M, N, K) of a row-major result M x N;
               detail: layout `nn`, `nt`, `tn` or `tt` (first operand, second operand; t when it
               is read transposed), bias (bool)
    conv       dims of the implicit GEMM (groups, N*H_out*W_out, C_out/groups, C_in/groups*k_h*k_w)
               whatever the pass; detail: direction `forward`, `data` (gradient of the input) or
               `weight`, n, c_in, h, w, c_out, k_h, k_w, stride, padding, dilation, groups (of
               the forward convolution, stride and so on as height, width pairs), channels_last,
               transposed. One- and three-dimensional ones fold or extend h (see rules)
    attention  dims None; detail: direction `forward` or `backward`, batch, heads, kv_heads,
               q_len, kv_len, head_dim, causal, masked, algorithm `flash`, `efficient` or `math`
               (`math` is for cases described by hand: the tracer takes it apart, as CUDA does)
    rnn        detail: direction, cell `lstm`, `gru` or `rnn`, layers, input, hidden, batch, seq,
               bidirectional
    norm       detail: direction, norm `batch`, `layer`, `group` or `rms`, rows, columns (rows are
               normalised, but by `batch`: there rows are N*H*W, columns the channels)
    softmax    detail: direction, rows, columns
    loss       detail: direction, rows, columns
    pool       detail: direction, window, stride
    embedding  detail: direction, rows, columns (looked up), table_rows
    elementwise, reduction, copy, index, random
               detail: elements; copy also from_dtype and strided (bool)
    foreach    a fused list operation of an optimizer; detail: tensors, elements, optimizer, fused
    other      no rule is known for it: counted by its bytes

A `view` costs the host a call and the GPU nothing; it is recorded for the host's sake.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

DTYPE_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
"""Arithmetic of an operation -> bytes of one of its floating-point operands."""


class Phase(StrEnum):
    """Part of the training step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


class Kind(StrEnum):
    """Kind of operation; each is timed by one part of a model."""

    GEMM = "gemm"
    CONV = "conv"
    ATTENTION = "attention"
    RNN = "rnn"
    NORM = "norm"
    SOFTMAX = "softmax"
    LOSS = "loss"
    POOL = "pool"
    EMBEDDING = "embedding"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    COPY = "copy"
    INDEX = "index"
    RANDOM = "random"
    FOREACH = "foreach"
    VIEW = "view"
    OTHER = "other"


MATRIX_KINDS = frozenset({Kind.GEMM, Kind.CONV, Kind.ATTENTION, Kind.RNN})
"""Products, which run on matrix units where these support the arithmetic."""


@dataclass(frozen=True, slots=True)
class Operation:
    """Work of one call of an operation; `count` calls are equal.

    Attributes:
        op: name of the operation, such as `aten.addmm`.
        kind: which part of a model times it.
        phase: forward, backward or optimizer.
        module: dotted path of the module that called it (its backward is its own as well); blocks
            that are alike are written once, `layers.0-31`. Empty outside of modules.
        dtype: arithmetic: `fp32`, `tf32`, `bf16`, `fp16`, `fp64`; a float32 product under tf32
            is `tf32`, a float32 addition stays `fp32`. What works on whole numbers only has
            their type (`int64`, `bool`).
        inputs, outputs: shapes of the tensors read and written.
        flops: floating-point operations of one call (a multiply-add is two).
        bytes_read, bytes_written: what one call has to move, each tensor once.
        dims: (B, M, N, K) of a product or convolution, else None.
        kernels: GPU kernels launched by one call.
        calls: operator calls the host makes for it (dispatches), 0 when it is part of another.
        ruled: False when no cost rule was known and only bytes are counted.
        count: how many such calls one step makes.
        detail: what else decides its time, by kind (see the module).
    """

    op: str
    kind: Kind
    phase: Phase
    module: str = ""
    dtype: str = "fp32"
    inputs: tuple[tuple[int, ...], ...] = ()
    outputs: tuple[tuple[int, ...], ...] = ()
    flops: float = 0.0
    bytes_read: float = 0.0
    bytes_written: float = 0.0
    dims: tuple[int, int, int, int] | None = None
    kernels: int = 1
    calls: int = 1
    ruled: bool = True
    count: int = 1
    detail: Mapping[str, object] = field(default_factory=dict)

    @property
    def bytes_moved(self) -> float:
        return self.bytes_read + self.bytes_written
