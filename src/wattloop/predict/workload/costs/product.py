"""Matrix products: cost, and rules of the calls that compute one."""

from collections.abc import Callable
from typing import Any, Unpack

from wattloop.predict.workload.costs.call import Call, OpContext, element_bytes, make_operation
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
    """Return a batch of B products of M x K with K x N into row-major M x N.

    A linear layer's forward is `nt` (its weight is stored N x K), the gradient of its input `nn`,
    the gradient of its weight `tn`. A bias is added in the same kernel.
    """
    size = float(element_bytes(dtype))
    return make_operation(
        Kind.GEMM,
        "aten.bmm" if b > 1 else ("aten.addmm" if bias else "aten.mm"),
        dtype,
        place,
        {"layout": layout, "bias": bias},
        flops=2.0 * b * m * n * k,
        bytes_read=size * (b * (m * k + k * n) + (n if bias else 0)),
        bytes_written=size * b * m * n,
        dims=(b, m, n, k),
    )


def _mm(call: Call) -> Operation:
    return _product(call, call.args[0], call.args[1], bias=False)


def _addmm(call: Call) -> Operation:
    return _product(call, call.args[1], call.args[2], bias=True)


def _mv(call: Call) -> Operation:
    matrix, vector = call.args[-2:]
    return _product(call, matrix, vector.unsqueeze(-1), bias=len(call.args) > 2)


def _dot(call: Call) -> Operation:
    return _product(call, call.args[0].unsqueeze(0), call.args[1].unsqueeze(-1), bias=False)


def _grouped(call: Call) -> Operation:
    """A product for each group of rows (experts); half precision computes all in one kernel."""
    first, second = call.args[:2]
    offsets = call.arg(2, "offs")
    groups = offsets.numel() if offsets is not None else first.shape[0]
    m, k, n = first.shape[-2], first.shape[-1], second.shape[-1]
    place = call.place
    if first.dim() == 2 and second.dim() == 2:
        k = max(k // groups, 1)
    elif first.dim() == 2:
        # Fewer rows than groups leave some without any: their weights are not read.
        used = round(groups * (1 - (1 - 1 / groups) ** m)) if m < groups else groups
        unread = float((groups - used) * k * n * second.element_size())
        place["bytes_read"] = place.get("bytes_read", 0.0) - unread
        groups, m = max(used, 1), max(m // max(used, 1), 1)
    elif second.dim() == 2:
        n = max(n // groups, 1)
    kernels = 1 if call.dtype in {"bf16", "fp16"} else groups
    layout = _read(first) + _read(second)
    place = place | OpContext(kernels=kernels)
    return gemm(groups, m, n, k, dtype=call.product_dtype, layout=layout, **place)


def _product(call: Call, first: Any, second: Any, *, bias: bool) -> Operation:
    b = first.shape[0] if first.dim() == 3 else 1
    m, k = first.shape[-2:]
    n = second.shape[-1]
    layout = _read(first) + _read(second)
    return gemm(b, m, n, k, dtype=call.product_dtype, layout=layout, bias=bias, **call.place)


def _read(matrix: Any) -> str:
    """Return `t` when consecutive elements lie along columns, as in a transposed view."""
    rows, columns = matrix.stride()[-2:]
    return "t" if rows == 1 and columns != 1 and matrix.shape[-2] > 1 else "n"


RULES: dict[str, Callable[[Call], Operation]] = {
    "aten.mm": _mm,
    "aten.bmm": _mm,
    "aten.matmul": _mm,
    "aten.addmm": _addmm,
    "aten.addmm_": _addmm,
    "aten.baddbmm": _addmm,
    "aten.baddbmm_": _addmm,
    "aten._addmm_activation": _addmm,
    "aten._grouped_mm": _grouped,
    "aten.mv": _mv,
    "aten.addmv": _mv,
    "aten.dot": _dot,
    "aten.vdot": _dot,
}
