"""Matrix products of aten."""

from collections.abc import Callable
from typing import Any

from wattloop.predict.workload import costs
from wattloop.predict.workload.operation import Operation
from wattloop.predict.workload.rules.call import Call

__all__ = ["RULES"]


def _mm(call: Call) -> Operation:
    return _product(call, call.args[0], call.args[1], bias=False)


def _addmm(call: Call) -> Operation:
    return _product(call, call.args[1], call.args[2], bias=True)


def _mv(call: Call) -> Operation:
    matrix, vector = call.args[-2:]
    return _product(call, matrix, vector.unsqueeze(-1), bias=len(call.args) > 2)


def _dot(call: Call) -> Operation:
    return _product(call, call.args[0].unsqueeze(0), call.args[1].unsqueeze(-1), bias=False)


def _product(call: Call, first: Any, second: Any, *, bias: bool) -> Operation:
    b = first.shape[0] if first.dim() == 3 else 1
    m, k = first.shape[-2:]
    n = second.shape[-1]
    layout = _read(first) + _read(second)
    return costs.gemm(b, m, n, k, dtype=call.product_dtype, layout=layout, bias=bias, **call.place)


def _read(matrix: Any) -> str:
    """`t` when consecutive elements lie along columns, as in a transposed view."""
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
    "aten.mv": _mv,
    "aten.addmv": _mv,
    "aten.dot": _dot,
    "aten.vdot": _dot,
}
