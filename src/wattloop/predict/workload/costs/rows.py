"""Operations over rows (norms, softmax, losses, pooling, embeddings): cost and rules."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Unpack

from wattloop.predict.workload.costs.call import Call, OpContext, element_bytes, make_operation
from wattloop.predict.workload.costs.stream import elementwise, reduction
from wattloop.predict.workload.operation import Kind, Operation


def norm(
    direction: str,
    norm: str,
    rows: int,
    columns: int,
    *,
    dtype: str,
    affine: bool = True,
    **place: Unpack[OpContext],
) -> Operation:
    """Return a normalisation, `batch`, `layer`, `group` or `rms`.

    Rows of `columns` elements are normalised each by itself; only `batch` normalises columns:
    its rows are N*H*W and its columns the channels. Statistics and weights are fp32.
    """
    size = float(element_bytes(dtype))
    elements = rows * columns
    statistics = 4.0 * (2 * columns if norm == "batch" else (1 if norm == "rms" else 2) * rows)
    weights = 4.0 * (1 if norm == "rms" else 2) * columns if affine else 0.0
    forward = direction == "forward"
    return make_operation(
        Kind.NORM,
        f"aten.native_{norm}_norm" + _suffix(direction),
        dtype,
        place,
        {"direction": direction, "norm": norm, "rows": rows, "columns": columns},
        direction=direction,
        flops=(7.0 if forward else 11.0) * elements,
        bytes_read=size * elements * (1 if forward else 2)
        + weights
        + (0 if forward else statistics),
        bytes_written=size * elements + (statistics if forward else weights),
        kernels=_NORM_KERNELS[norm][0 if forward else 1],
    )


def softmax(
    direction: str, rows: int, columns: int, *, dtype: str, **place: Unpack[OpContext]
) -> Operation:
    """Return a softmax or its logarithm over rows of `columns` elements."""
    size = float(element_bytes(dtype))
    elements = rows * columns
    forward = direction == "forward"
    return make_operation(
        Kind.SOFTMAX,
        "aten._softmax" + _suffix(direction, "_data"),
        dtype,
        place,
        {"direction": direction, "rows": rows, "columns": columns},
        direction=direction,
        flops=(5.0 if forward else 4.0) * elements,
        bytes_read=size * elements * (1 if forward else 2),
        bytes_written=size * elements,
    )


def loss(
    direction: str, rows: int, columns: int, *, dtype: str, **place: Unpack[OpContext]
) -> Operation:
    """Return the negative log likelihood of `rows` log-probabilities over `columns` classes.

    Forward looks up one element a row. Backward fills the gradient with zeros and then writes
    one element a row. The logarithm of the softmax before it is a `softmax` of its own.
    """
    size = element_bytes(dtype)
    forward = direction == "forward"
    return make_operation(
        Kind.LOSS,
        "aten.nll_loss" + _suffix(direction, "_forward"),
        dtype,
        place,
        {"direction": direction, "rows": rows, "columns": columns},
        direction=direction,
        flops=float(rows) * (2 if forward else 1),
        bytes_read=(size + 8.0) * rows if forward else 8.0 * rows,
        bytes_written=float(size) * (2 if forward else rows * columns + rows),
        kernels=1 if forward else 2,
    )


def pool(
    direction: str,
    elements_in: int,
    elements_out: int,
    *,
    window: Sequence[int],
    stride: Sequence[int],
    dtype: str,
    indices: bool = True,
    **place: Unpack[OpContext],
) -> Operation:
    """Return pooling of windows; a maximum also stores its position (`indices`)."""
    size = element_bytes(dtype)
    small, large = float(size) * elements_in, float(size + (8 if indices else 0)) * elements_out
    read, written = (small, large) if direction == "forward" else (large, small)
    op = "aten.max_pool2d_with_indices" if indices else "aten.avg_pool2d"
    return make_operation(
        Kind.POOL,
        op + _suffix(direction),
        dtype,
        place,
        {"direction": direction, "window": tuple(window), "stride": tuple(stride)},
        direction=direction,
        flops=float(elements_out) * prod(window),
        bytes_read=read,
        bytes_written=written,
    )


def embedding(
    direction: str,
    rows: int,
    columns: int,
    table_rows: int,
    *,
    dtype: str,
    **place: Unpack[OpContext],
) -> Operation:
    """Look `rows` rows of `columns` elements up in a table.

    The gradient is as large as the table: it is filled with zeros and then rows are added to it
    in the order of their indices, which are sorted first.
    """
    size = float(element_bytes(dtype))
    elements = rows * columns
    forward = direction == "forward"
    return make_operation(
        Kind.EMBEDDING,
        "aten.embedding" + ("" if forward else "_dense_backward"),
        dtype,
        place,
        {"direction": direction, "rows": rows, "columns": columns, "table_rows": table_rows},
        direction=direction,
        flops=0.0 if forward else float(elements),
        bytes_read=size * elements + 8.0 * rows,
        bytes_written=size * (elements if forward else table_rows * columns + elements),
        # Fill, sort (four radix passes and their preparation), then sums by segment.
        kernels=1 if forward else 10,
    )


_NORM_KERNELS = {"batch": (1, 1), "layer": (1, 2), "group": (2, 3), "rms": (1, 2)}
"""Norm -> kernels forward and backward (cuDNN does the batch norm's in one call)."""


def _suffix(direction: str, forward: str = "") -> str:
    # The names of aten: `nll_loss_forward`, `_softmax_backward_data`.
    if direction == "forward":
        return forward if forward == "_forward" else ""
    return "_backward" + (forward if forward != "_forward" else "")


def _layer_norm(call: Call) -> Operation:
    backward = _backward(call)
    x, shape = (call.args[1], call.args[2]) if backward else call.args[:2]
    columns = prod(shape)
    return norm(
        _direction(call),
        "layer",
        x.numel() // max(columns, 1),
        columns,
        dtype=call.dtype,
        **call.place,
    )


def _rms_norm(call: Call) -> Operation:
    x, columns = call.args[0], call.args[2]
    return norm(
        _direction(call),
        "rms",
        x.numel() // columns,
        columns,
        dtype=call.dtype,
        **(call.place | OpContext(op=call.name.replace("wattloop.rms", "aten._fused_rms"))),
    )


def _group_norm(call: Call) -> Operation:
    if _backward(call):
        n, c, hxw, groups = call.args[5:9]
    else:
        n, c, hxw, groups = call.args[3:7]
    return norm(
        _direction(call), "group", n * groups, c // groups * hxw, dtype=call.dtype, **call.place
    )


def _batch_norm(call: Call) -> Operation:
    backward = _backward(call)
    x = call.args[1] if backward else call.args[0]
    channels = x.shape[1]
    place = call.place
    # cuDNN normalises fp32 and fp16 pictures in one kernel; bf16 has torch's own three.
    library = call.dtype != "bf16" and x.dim() >= 3
    name = "aten.cudnn_batch_norm" if library else "aten.native_batch_norm"
    kernels = (1 if backward or library else 3) if _trains(call) else 1
    return norm(
        _direction(call),
        "batch",
        x.numel() // max(channels, 1),
        channels,
        dtype=call.dtype,
        **(place | OpContext(op=name + ("_backward" if backward else ""), kernels=kernels)),
    )


def _trains(call: Call) -> bool:
    """Return whether a batch norm uses the statistics of its batch."""
    if _backward(call):
        return bool(call.arg(7, "train", True))
    return bool(call.arg(5, "training", True)) if "no_stats" not in str(call.func) else True


def _softmax(call: Call) -> Operation:
    if _backward(call):
        x, dim = call.args[1], call.args[2]
    else:
        x, dim = call.args[:2]
    columns = x.shape[dim] if x.dim() else 1
    return softmax(
        _direction(call), x.numel() // max(columns, 1), columns, dtype=call.dtype, **call.place
    )


def _nll_loss(call: Call) -> Operation:
    # Backward gets the gradient first; what has the classes is the next argument.
    x = call.args[1] if _backward(call) else call.args[0]
    classes = x.shape[1] if x.dim() > 1 else x.shape[0]
    place = call.place
    for key in ("bytes_read", "bytes_written"):
        # Only one class of each row is looked up: the rule knows better than the tensors.
        place.pop(key)  # type: ignore[misc]  # a key that the type allows to be absent
    return loss(_direction(call), x.numel() // max(classes, 1), classes, dtype=call.dtype, **place)


def _pair_loss(call: Call) -> Operation:
    """Return a loss of two equal-shaped tensors: elementwise, then reduced.

    It is not of the kind of `loss`, whose forward pass runs in few blocks and takes hundreds of
    times longer per byte.
    """
    if _backward(call):
        return elementwise(call.elements, 3, 1, call.dtype, **call.place)
    reduced = call.result.dim() == 0
    x = call.args[0]
    between = float(x.numel() * x.element_size()) if reduced else 0.0
    place = call.place
    place["bytes_read"] = place.get("bytes_read", 0.0) + between
    place["bytes_written"] = place.get("bytes_written", 0.0) + between
    place["kernels"] = 2 if reduced else 1
    place["flops"] = 3.0 * x.numel()
    if reduced:
        return reduction(x.numel(), 1, call.dtype, **place)
    return elementwise(x.numel(), 2, 1, call.dtype, **place)


def _pool(call: Call) -> Operation:
    backward = _backward(call)
    x = call.args[1] if backward else call.args[0]
    adaptive = "adaptive" in call.name
    if adaptive:
        y = call.args[0] if backward else call.outputs[0]
        axes = range(-(y.dim() - 2), 0)
        window = tuple(-(-x.shape[axis] // y.shape[axis]) for axis in axes)
        stride: Sequence[int] = window
    else:
        window = _lengths(call.args[2 if backward else 1])
        stride = _lengths(call.arg(3 if backward else 2, "stride", ())) or window
    y = call.args[0] if backward else call.outputs[0]
    return pool(
        _direction(call),
        x.numel(),
        y.numel(),
        window=window,
        stride=stride,
        dtype=call.dtype,
        indices="max" in call.name,
        **call.place,
    )


def _embedding(call: Call) -> Operation:
    place = call.place
    for key in ("bytes_read", "bytes_written"):
        # Rows that are looked up, not the whole table.
        place.pop(key)  # type: ignore[misc]  # a key that the type allows to be absent
    if _backward(call):
        grad, indices, table_rows = call.args[:3]
        if indices.numel() <= _UNSORTED_INDICES:
            place["kernels"] = 2
        return embedding(
            "backward",
            indices.numel(),
            grad.shape[-1],
            table_rows,
            dtype=call.dtype,
            **place,
        )
    table, indices = call.args[:2]
    return embedding(
        "forward", indices.numel(), table.shape[-1], table.shape[0], dtype=call.dtype, **place
    )


_UNSORTED_INDICES = 3072
"""Up to so many rows CUDA adds gradients of an embedding without sorting the indices."""


def _backward(call: Call) -> bool:
    return "backward" in call.name


def _direction(call: Call) -> str:
    return "backward" if _backward(call) else "forward"


def _lengths(value: Any) -> tuple[int, ...]:
    return (value,) if isinstance(value, int) else tuple(value)


def _with_backward(
    rule: Callable[[Call], Operation], *names: str
) -> dict[str, Callable[[Call], Operation]]:
    return {f"aten.{name}{end}": rule for name in names for end in ("", "_backward")}


RULES: dict[str, Callable[[Call], Operation]] = {
    **_with_backward(_layer_norm, "native_layer_norm"),
    **_with_backward(_group_norm, "native_group_norm"),
    "wattloop.rms_norm": _rms_norm,
    "wattloop.rms_norm_backward": _rms_norm,
    **_with_backward(
        _batch_norm, "native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm"
    ),
    "aten._native_batch_norm_legit_no_training": _batch_norm,
    "aten._softmax": _softmax,
    "aten._log_softmax": _softmax,
    "aten._safe_softmax": _softmax,
    "aten._softmax_backward_data": _softmax,
    "aten._log_softmax_backward_data": _softmax,
    "aten.nll_loss_forward": _nll_loss,
    "aten.nll_loss_backward": _nll_loss,
    "aten.nll_loss2d_forward": _nll_loss,
    "aten.nll_loss2d_backward": _nll_loss,
    **_with_backward(
        _pair_loss, "mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy"
    ),
    "aten.binary_cross_entropy_with_logits": _pair_loss,
    **_with_backward(
        _pool,
        "max_pool2d_with_indices",
        "max_pool3d_with_indices",
        "avg_pool1d",
        "avg_pool2d",
        "avg_pool3d",
        "_adaptive_avg_pool2d",
        "_adaptive_avg_pool3d",
        "adaptive_max_pool2d",
        "adaptive_max_pool3d",
    ),
    "aten.embedding": _embedding,
    "aten.embedding_dense_backward": _embedding,
}
