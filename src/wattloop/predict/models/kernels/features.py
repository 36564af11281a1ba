"""Where an operation lies among its like: what decides how far its time is from the formula's."""

import math
from collections.abc import Callable, Mapping

from wattloop.predict.models.kernels.alignment import halvings_short
from wattloop.predict.models.kernels.classes import class_of
from wattloop.predict.models.kernels.classes import size_of as _size
from wattloop.predict.workload.operation import DTYPE_BYTES, Kind, Operation

__all__ = ["features_of"]

FLAG = 3.0
"""Distance between two values of a flag, in doublings of a size."""


def features_of(op: Operation) -> tuple[str, tuple[float, ...]]:
    """Group of operations that can be compared, and the place in it; one unit is a doubling."""
    return class_of(op), _PLACES.get(op.kind, _by_bytes)(op)


def _gemm(op: Operation) -> tuple[float, ...]:
    b, m, n, k = op.dims or (1, 1, 1, 1)
    layout = str(op.detail.get("layout", "nn"))
    return (
        *(_log2(size) for size in (b, m, n, k)),
        FLAG * (layout[:1] == "t"),
        FLAG * (layout[1:] == "t"),
        FLAG * halvings_short(op),
    )


def _conv(op: Operation) -> tuple[float, ...]:
    d = op.detail
    groups = _size(d, "groups")
    return (
        _log2(_size(d, "n")),
        _log2(_size(d, "h") * _size(d, "w")) / 2,
        _log2(_size(d, "c_in") / groups),
        _log2(_size(d, "c_out") / groups),
        _log2(groups),
        2 * _log2(_size(d, "k_h") * _size(d, "k_w")) / 2,
        FLAG * _log2(_size(d, "stride")) / 2,
        FLAG * (_size(d, "dilation") > 1),
        2 * FLAG * bool(d.get("channels_last")),
        FLAG * bool(d.get("transposed")),
        _log2(op.flops),
    )


def _attention(op: Operation) -> tuple[float, ...]:
    d = op.detail
    heads = _size(d, "heads")
    return (
        _log2(_size(d, "batch") * heads),
        _log2(_size(d, "q_len")),
        _log2(_size(d, "kv_len")),
        2 * _log2(_size(d, "head_dim")),
        _log2(heads / _size(d, "kv_heads", heads)) / 2,
        FLAG * bool(d.get("causal")),
        FLAG * bool(d.get("masked")),
    )


def _rnn(op: Operation) -> tuple[float, ...]:
    d = op.detail
    return (
        *(_log2(_size(d, key)) for key in ("batch", "seq", "input", "hidden", "layers")),
        FLAG * bool(d.get("bidirectional")),
    )


def _rows_columns(op: Operation) -> tuple[float, ...]:
    d = op.detail
    columns = _size(d, "columns")
    odd = bool(columns % (16 / DTYPE_BYTES.get(op.dtype, 4)))
    return (_log2(_size(d, "rows")), _log2(columns), FLAG * odd)


def _reduction(op: Operation) -> tuple[float, ...]:
    """Many into few or few into one: elements, and bytes of the results."""
    return (_log2(op.bytes_read), _log2(op.bytes_written))


def _foreach(op: Operation) -> tuple[float, ...]:
    tensors = _size(op.detail, "tensors")
    return (
        _log2(op.bytes_moved),
        _log2(tensors),
        _log2(op.kernels),
        op.bytes_read / op.bytes_moved,
    )


def _by_bytes(op: Operation) -> tuple[float, ...]:
    return (_log2(op.bytes_moved),)


_PLACES: Mapping[Kind, Callable[[Operation], tuple[float, ...]]] = {
    Kind.GEMM: _gemm,
    Kind.CONV: _conv,
    Kind.ATTENTION: _attention,
    Kind.RNN: _rnn,
    Kind.NORM: _rows_columns,
    Kind.SOFTMAX: _rows_columns,
    Kind.LOSS: _rows_columns,
    Kind.EMBEDDING: _rows_columns,
    Kind.REDUCTION: _reduction,
    Kind.FOREACH: _foreach,
}


def _log2(size: float) -> float:
    return math.log2(max(size, 1e-3))
