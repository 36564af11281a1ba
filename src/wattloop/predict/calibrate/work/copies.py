"""Copies: to another number format, another layout, into one tensor."""

import math
from collections.abc import Callable
from typing import Any

from wattloop.predict.calibrate.bench import Bench, Work, torch_dtypes
from wattloop.predict.calibrate.work.params import Params

__all__ = ["build"]


def build(bench: Bench, p: Params) -> Work:
    """`layout` says what the copy changes."""
    torch = bench.torch
    dtype, to = bench.precision(p.text("dtype")), torch_dtypes(torch)[p.text("to")]
    layout = p.text("layout")
    sizes = [p.number("elements")] if layout == "same" else p.numbers("sizes")

    def make() -> Callable[[], Any]:
        x = bench.normal(sizes, dtype)
        if layout == "same":
            return x.clone if to == dtype else (lambda: x.to(to))
        return _laid(torch, layout, x)

    size = torch.empty((), dtype=dtype).element_size()
    most = 1 if p.flag("resident") else 32
    return bench.sets(make, 2.0 * math.prod(sizes) * size, most=most)


def _laid(torch: Any, layout: str, x: Any) -> Callable[[], Any]:
    if layout == "heads":
        return lambda: x.transpose(1, 2).contiguous()
    if layout == "transpose":
        return lambda: x.t().contiguous()
    if layout == "nhwc":
        return lambda: x.contiguous(memory_format=torch.channels_last)
    if layout == "nchw":
        last = x.permute(0, 2, 3, 1).reshape(x.shape).view(
            x.shape[0], x.shape[2], x.shape[3], x.shape[1]
        ).permute(0, 3, 1, 2)  # fmt: skip
        last_copy: Callable[[], Any] = last.contiguous
        return last_copy
    if layout == "cat":
        return lambda: torch.cat((x, x), dim=1)
    if layout == "pad":
        return lambda: torch.ops.aten.constant_pad_nd(x, (1, 1, 1, 1), 0.0)
    if layout == "slice":
        half: Callable[[], Any] = x[:, : x.shape[1] // 2].contiguous
        return half
    return lambda: torch.roll(x, (-3, -3), dims=(2, 3))
