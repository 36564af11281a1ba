"""Matrix products: mm, addmm and bmm by layout."""

from collections.abc import Callable
from typing import Any

from wattloop.predict.calibrate.bench import Bench, Work
from wattloop.predict.calibrate.work.params import Params

__all__ = ["build"]


def build(bench: Bench, p: Params) -> Work:
    """`t` in the layout is an operand that is stored the other way round."""
    dtype = bench.precision(p.text("dtype"))
    b, m, n, k = (p.number(name) for name in "bmnk")
    torch = bench.torch

    def operand(rows: int, columns: int, transposed: bool) -> Any:
        shape = (columns, rows) if transposed else (rows, columns)
        tensor = bench.normal((b, *shape) if b > 1 else shape, dtype)
        return tensor.transpose(-1, -2) if transposed else tensor

    def make() -> Callable[[], Any]:
        first = operand(m, k, p.text("layout")[0] == "t")
        second = operand(k, n, p.text("layout")[1] == "t")
        if p.flag("bias"):
            bias = bench.normal((n,), dtype)
            return lambda: torch.addmm(bias, first, second)
        return (lambda: torch.bmm(first, second)) if b > 1 else (lambda: torch.mm(first, second))

    size = torch.empty((), dtype=dtype).element_size()
    return bench.sets(make, b * (m * k + k * n + m * n) * size, most=16)
