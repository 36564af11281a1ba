"""Convolutions, each direction apart, with the algorithm cuDNN picks by default."""

from collections.abc import Callable
from typing import Any

from wattloop.predict.calibrate.bench import Bench, Work
from wattloop.predict.calibrate.work.params import Params

__all__ = ["build"]


def build(bench: Bench, p: Params) -> Work:
    """Forward, gradient of the input or gradient of the weight."""
    torch = bench.torch
    dtype = bench.precision(p.text("dtype"))
    dims = 1 if p.flag("line") else 2
    n, c_in, c_out, groups = (p.number(name) for name in ("n", "c_in", "c_out", "groups"))
    kernel = [p.number("k")] * dims
    stride, padding = [p.number("stride")] * dims, [p.number("padding")] * dims
    transposed, direction = p.flag("transposed"), p.text("direction")
    channels = (c_in, c_out // groups) if transposed else (c_out, c_in // groups)
    data_shape = (n, c_in, *[p.number("side")] * dims)
    settings = (stride, padding, [1] * dims, transposed, [0] * dims, groups)
    mask = [direction == "data", direction == "weight", False]

    def laid(tensor: Any) -> Any:
        if p.flag("channels_last"):
            return tensor.contiguous(memory_format=torch.channels_last)
        return tensor

    out_shape = tuple(
        torch.ops.aten.convolution(
            torch.empty(data_shape, device="meta"),
            torch.empty((*channels, *kernel), device="meta"),
            None,
            *settings,
        ).shape
    )

    def make() -> Callable[[], Any]:
        data = laid(bench.normal(data_shape, dtype))
        weight = laid(bench.normal((*channels, *kernel), dtype))
        if direction == "forward":
            return lambda: torch.ops.aten.convolution(data, weight, None, *settings)
        gradient = laid(bench.normal(out_shape, dtype))
        return lambda: torch.ops.aten.convolution_backward(
            gradient, data, weight, None, *settings, mask
        )

    size = torch.empty((), dtype=dtype).element_size()
    elements = torch.Size(data_shape).numel() + torch.Size(out_shape).numel()
    return bench.sets(make, elements * size, most=4 if p.flag("channels_last") else 12)
