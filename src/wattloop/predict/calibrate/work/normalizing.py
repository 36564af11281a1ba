"""Norms, softmax and losses, forward and backward."""

from typing import Any

from wattloop.predict.calibrate.bench import Bench, Work
from wattloop.predict.calibrate.work.gradient import directed
from wattloop.predict.calibrate.work.params import Params

__all__ = ["loss", "norm", "softmax"]


def norm(bench: Bench, p: Params) -> Work:
    """Batch, layer, group or RMS norm in training; weights of a batch norm stay float32."""
    functional = bench.torch.nn.functional
    dtype = bench.precision(p.text("dtype"))
    kind = p.text("norm")
    shape: tuple[int, ...]
    if kind in ("layer", "rms"):
        width = p.number("columns")
        shape = (p.number("rows"), width)
    else:
        width = p.number("channels")
        shape = (p.number("n"), width, p.number("side"), p.number("side"))
    weight_dtype = bench.torch.float32 if kind == "batch" else dtype
    mean = bench.torch.zeros(width, device=bench.device)
    variance = bench.torch.ones(width, device=bench.device)

    def function(x: Any, weight: Any, *bias: Any) -> Any:
        if kind == "batch":
            return functional.batch_norm(x, mean, variance, weight, *bias, training=True)
        if kind == "group":
            return functional.group_norm(x, p.number("groups"), weight, *bias)
        if kind == "layer":
            return functional.layer_norm(x, (width,), weight, *bias)
        return functional.rms_norm(x, (width,), weight)

    def inputs() -> tuple[Any, ...]:
        weights = [bench.normal((width,), weight_dtype) for _ in range(1 if kind == "rms" else 2)]
        return bench.normal(shape, dtype), *weights

    size = bench.torch.empty((), dtype=dtype).element_size()
    set_bytes = 2.0 * bench.torch.Size(shape).numel() * size
    return directed(bench, p.text("direction") == "backward", function, inputs, set_bytes)


def softmax(bench: Bench, p: Params) -> Work:
    """Softmax or log-softmax over the last dimension."""
    dtype = bench.precision(p.text("dtype"))
    shape = (p.number("rows"), p.number("columns"))
    functional = bench.torch.nn.functional
    function = functional.log_softmax if p.flag("log") else functional.softmax
    size = bench.torch.empty((), dtype=dtype).element_size()
    return directed(
        bench,
        p.text("direction") == "backward",
        lambda x: function(x, dim=-1),
        lambda: (bench.normal(shape, dtype),),
        2.0 * shape[0] * shape[1] * size,
    )


def loss(bench: Bench, p: Params) -> Work:
    """Cross entropy (log-softmax and the loss), the loss alone, or the mean squared error."""
    torch = bench.torch
    dtype = bench.precision(p.text("dtype"))
    rows, columns, kind = p.number("rows"), p.number("columns"), p.text("loss")
    functional = torch.nn.functional

    def inputs() -> tuple[Any, ...]:
        x = bench.normal((rows, columns), dtype)
        if kind == "mse":
            target = bench.normal((rows, columns), dtype)
            target.constant = True
            return x, target
        return x, bench.whole(columns, (rows,))

    functions = {
        "cross_entropy": functional.cross_entropy,
        "nll": functional.nll_loss,
        "mse": functional.mse_loss,
    }
    size = torch.empty((), dtype=dtype).element_size()
    set_bytes = 2.0 * rows * columns * size
    return directed(bench, p.text("direction") == "backward", functions[kind], inputs, set_bytes)
