"""Cost of memory-bound operations: over rows (norms, softmax, losses, pooling) and elementwise."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Unpack

from wattloop.predict.workload.costs.context import OpContext, element_bytes, operation, start
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
    size = element_bytes(dtype)
    elements = rows * columns
    statistics = 4.0 * (2 * columns if norm == "batch" else (1 if norm == "rms" else 2) * rows)
    weights = 4.0 * (1 if norm == "rms" else 2) * columns if affine else 0.0
    forward = direction == "forward"
    made = replace(
        start(Kind.NORM, f"aten.native_{norm}_norm" + _suffix(direction), dtype, direction),
        flops=(7.0 if forward else 11.0) * elements,
        bytes_read=float(size) * elements * (1 if forward else 2)
        + weights
        + (0 if forward else statistics),
        bytes_written=float(size) * elements + (statistics if forward else weights),
        kernels=_NORM_KERNELS[norm][0 if forward else 1],
    )
    return operation(
        made, place, {"direction": direction, "norm": norm, "rows": rows, "columns": columns}
    )


def softmax(
    direction: str, rows: int, columns: int, *, dtype: str, **place: Unpack[OpContext]
) -> Operation:
    """Return a softmax or its logarithm over rows of `columns` elements."""
    size = element_bytes(dtype)
    elements = rows * columns
    forward = direction == "forward"
    made = replace(
        start(Kind.SOFTMAX, "aten._softmax" + _suffix(direction, "_data"), dtype, direction),
        flops=(5.0 if forward else 4.0) * elements,
        bytes_read=float(size) * elements * (1 if forward else 2),
        bytes_written=float(size) * elements,
    )
    return operation(made, place, {"direction": direction, "rows": rows, "columns": columns})


def loss(
    direction: str, rows: int, columns: int, *, dtype: str, **place: Unpack[OpContext]
) -> Operation:
    """Return the negative log likelihood of `rows` log-probabilities over `columns` classes.

    Forward looks up one element a row. Backward fills the gradient with zeros and then writes
    one element a row. The logarithm of the softmax before it is a `softmax` of its own.
    """
    size = element_bytes(dtype)
    forward = direction == "forward"
    made = replace(
        start(Kind.LOSS, "aten.nll_loss" + _suffix(direction, "_forward"), dtype, direction),
        flops=float(rows) * (2 if forward else 1),
        bytes_read=(size + 8.0) * rows if forward else 8.0 * rows,
        bytes_written=float(size) * (2 if forward else rows * columns + rows),
        kernels=1 if forward else 2,
    )
    return operation(made, place, {"direction": direction, "rows": rows, "columns": columns})


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
    kept = 8 if indices else 0
    forward = direction == "forward"
    op = "aten.max_pool2d_with_indices" if indices else "aten.avg_pool2d"
    made = replace(
        start(Kind.POOL, op + _suffix(direction), dtype, direction),
        flops=float(elements_out) * prod(window),
        bytes_read=float(size) * elements_in if forward else float(size + kept) * elements_out,
        bytes_written=float(size + kept) * elements_out if forward else float(size) * elements_in,
    )
    detail = {"direction": direction, "window": tuple(window), "stride": tuple(stride)}
    return operation(made, place, detail)


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
    size = element_bytes(dtype)
    elements = rows * columns
    forward = direction == "forward"
    made = replace(
        start(
            Kind.EMBEDDING,
            "aten.embedding" + ("" if forward else "_dense_backward"),
            dtype,
            direction,
        ),
        flops=0.0 if forward else float(elements),
        bytes_read=float(size) * elements + 8.0 * rows,
        bytes_written=float(size) * (elements if forward else table_rows * columns + elements),
        # Fill, sort (four radix passes and their preparation), then sums by segment.
        kernels=1 if forward else 10,
    )
    detail = {
        "direction": direction,
        "rows": rows,
        "columns": columns,
        "table_rows": table_rows,
    }
    return operation(made, place, detail)


_NORM_KERNELS = {"batch": (1, 1), "layer": (1, 2), "group": (2, 3), "rms": (1, 2)}
"""Norm -> kernels forward and backward (cuDNN does the batch norm's in one call)."""


def _suffix(direction: str, forward: str = "") -> str:
    # The names of aten: `nll_loss_forward`, `_softmax_backward_data`.
    if direction == "forward":
        return forward if forward == "_forward" else ""
    return "_backward" + (forward if forward != "_forward" else "")


def elementwise(
    elements: int,
    tensors_read: float,
    tensors_written: float,
    dtype: str,
    *,
    flops_per_element: float = 1.0,
    **place: Unpack[OpContext],
) -> Operation:
    """Return one pass over tensors of `elements` each."""
    size = element_bytes(dtype)
    made = replace(
        start(Kind.ELEMENTWISE, "aten.add", dtype),
        flops=flops_per_element * elements,
        bytes_read=float(size) * elements * tensors_read,
        bytes_written=float(size) * elements * tensors_written,
    )
    return operation(made, place, {"elements": elements})


def reduction(
    elements: int,
    results: int,
    dtype: str,
    *,
    tensors_read: float = 1.0,
    **place: Unpack[OpContext],
) -> Operation:
    """Return a sum, mean, maximum or norm of `elements` into `results`."""
    size = element_bytes(dtype)
    made = replace(
        start(Kind.REDUCTION, "aten.sum", dtype),
        flops=float(elements),
        bytes_read=float(size) * elements * tensors_read,
        bytes_written=float(size) * results,
    )
    return operation(made, place, {"elements": elements})


def copy(
    elements: int, from_dtype: str, to_dtype: str, strided: bool, **place: Unpack[OpContext]
) -> Operation:
    """Return a copy, with a conversion where the types differ; `strided` when the layouts do."""
    made = replace(
        start(
            Kind.COPY,
            "aten._to_copy" if from_dtype != to_dtype else "aten.clone",
            to_dtype,
        ),
        bytes_read=float(element_bytes(from_dtype)) * elements,
        bytes_written=float(element_bytes(to_dtype)) * elements,
    )
    detail = {"elements": elements, "from_dtype": from_dtype, "strided": strided}
    return operation(made, place, detail)


def index(elements: int, dtype: str, **place: Unpack[OpContext]) -> Operation:
    """Return a gather or scatter of `elements`, one 64-bit index each."""
    size = element_bytes(dtype)
    made = replace(
        start(Kind.INDEX, "aten.index", dtype),
        bytes_read=float(size + 8) * elements,
        bytes_written=float(size) * elements,
    )
    return operation(made, place, {"elements": elements})


def random(
    elements: int, dtype: str, *, tensors_read: float = 0.0, **place: Unpack[OpContext]
) -> Operation:
    """Return random numbers; a dropout reads its input and writes a byte mask with the result."""
    size = element_bytes(dtype)
    mask = 1.0 if tensors_read else 0.0
    made = replace(
        start(Kind.RANDOM, "aten.native_dropout" if tensors_read else "aten.normal_", dtype),
        flops=10.0 * elements,
        bytes_read=float(size) * elements * tensors_read,
        bytes_written=(float(size) + mask) * elements,
    )
    return operation(made, place, {"elements": elements})


def view(**place: Unpack[OpContext]) -> Operation:
    """Return a view of the same memory: only the host's time."""
    made = replace(start(Kind.VIEW, "aten.view", "fp32"), kernels=0)
    return operation(made, place, {})


def other(elements: int, dtype: str, **place: Unpack[OpContext]) -> Operation:
    """Return an operation without a rule: its tensors are read and written once."""
    made = replace(start(Kind.OTHER, "aten.unknown", dtype), ruled=False)
    return operation(made, place, {"elements": elements})
