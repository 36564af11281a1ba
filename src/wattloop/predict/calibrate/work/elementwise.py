"""Functions of each element by itself, and their gradients."""

from collections.abc import Callable
from typing import Any

from wattloop.predict.calibrate.bench import Bench, Work
from wattloop.predict.calibrate.work.params import Params

__all__ = ["build"]

DROP = 0.1


def build(bench: Bench, p: Params) -> Work:
    """One function; `resident` keeps to one set of inputs, which then stays in the cache."""
    dtype = bench.precision(p.text("dtype"))
    elements, columns = p.number("elements"), p.number("columns", 0)
    shape = (elements // columns, columns) if columns else (elements,)
    function = p.text("function")

    def make() -> Callable[[], Any]:
        return _call(bench, function, shape, dtype)

    size = bench.torch.empty((), dtype=dtype).element_size()
    return bench.sets(make, 3.0 * elements * size, most=1 if p.flag("resident") else 48)


def _call(bench: Bench, function: str, shape: tuple[int, ...], dtype: Any) -> Callable[[], Any]:
    torch = bench.torch
    aten = torch.ops.aten
    x = bench.normal(shape, dtype)
    unary: dict[str, Callable[[], Any]] = {
        "relu": lambda: torch.relu(x),
        "gelu": lambda: aten.gelu(x),
        "gelu_tanh": lambda: aten.gelu(x, approximate="tanh"),
        "silu": lambda: aten.silu(x),
        "tanh": lambda: torch.tanh(x),
        "sigmoid": lambda: torch.sigmoid(x),
        "hardswish": lambda: aten.hardswish(x),
        "relu6": lambda: aten.hardtanh(x, 0.0, 6.0),
        "exp": lambda: torch.exp(x),
        "neg": lambda: torch.neg(x),
        "pow2": lambda: torch.pow(x, 2),
        "rsqrt": lambda: torch.rsqrt(x),
        "scale": lambda: torch.mul(x, 0.125),
        "dropout": lambda: aten.native_dropout(x, DROP, True),
        "fill": lambda: torch.zeros(shape, dtype=dtype, device=bench.device),
    }
    if function in unary:
        return unary[function]
    if function in ("bias", "column"):
        other = bench.normal((shape[1],) if function == "bias" else (shape[0], 1), dtype)
        return lambda: torch.add(x, other)
    y = bench.normal(shape, dtype)
    if function == "accumulate":
        total = torch.zeros_like(y)
        return lambda: total.add_(y)
    return _of_two(bench, function, x, y)


def _of_two(bench: Bench, function: str, x: Any, y: Any) -> Callable[[], Any]:
    torch = bench.torch
    aten = torch.ops.aten
    if function in ("dropout_backward", "where"):
        mask = x > 0
        if function == "where":
            return lambda: torch.where(mask, x, y)
        return lambda: aten.native_dropout_backward(y, mask, 1 / (1 - DROP))
    calls: dict[str, Callable[[], Any]] = {
        "add": lambda: torch.add(x, y),
        "sub": lambda: torch.sub(x, y),
        "mul": lambda: torch.mul(x, y),
        "div": lambda: torch.div(x, y),
        "addcmul": lambda: torch.addcmul(x, x, y),
        "relu_backward": lambda: aten.threshold_backward(y, x, 0),
        "gelu_backward": lambda: aten.gelu_backward(y, x),
        "gelu_tanh_backward": lambda: aten.gelu_backward(y, x, approximate="tanh"),
        "silu_backward": lambda: aten.silu_backward(y, x),
        "tanh_backward": lambda: aten.tanh_backward(y, x),
        "sigmoid_backward": lambda: aten.sigmoid_backward(y, x),
        "hardswish_backward": lambda: aten.hardswish_backward(y, x),
        "relu6_backward": lambda: aten.hardtanh_backward(y, x, 0.0, 6.0),
    }
    return calls[function]
