"""Convolutions: forward, gradient of the input, gradient of the weight."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Unpack

from wattloop.predict.workload.costs.context import OpContext, element_bytes, operation, start
from wattloop.predict.workload.operation import Kind, Operation

Lengths = int | Sequence[int]


"""One number for all axes, or one for each."""


def conv(  # noqa: PLR0913 - a convolution has that many numbers
    direction: str,
    n: int,
    c_in: int,
    hw: Sequence[int],
    c_out: int,
    kernel: Lengths,
    *,
    stride: Lengths = 1,
    padding: Lengths = 0,
    dilation: Lengths = 1,
    groups: int = 1,
    dtype: str,
    channels_last: bool = False,
    transposed: bool = False,
    output_padding: Lengths = 0,
    bias: bool = False,
    **place: Unpack[OpContext],
) -> Operation:
    """One pass of a convolution of `n` images of `c_in` channels and size `hw` (of the input).

    `direction` is `forward`, `data` or `weight`. One axis is a picture of height 1; three fold
    the first two into the height. A transposed convolution does what the gradient of the input of
    the convolution back does, and has that one's dims.
    """
    axes = len(hw)
    kernel, stride, padding, dilation, output_padding = (
        _per_axis(value, axes) for value in (kernel, stride, padding, dilation, output_padding)
    )
    out = conv_output(hw, kernel, stride, padding, dilation, transposed, output_padding)
    small, (rows, columns) = (hw, (c_in, c_out)) if transposed else (out, (c_out, c_in))
    dims = (groups, n * prod(small), rows // groups, columns // groups * prod(kernel))
    size = element_bytes(dtype)
    x = n * c_in * prod(hw)
    y = n * c_out * prod(out)
    w = c_out * (c_in // groups) * prod(kernel)
    moved = {
        "forward": (x + w + (c_out if bias else 0), y),
        "data": (y + w, x),
        "weight": (x + y, w),
    }[direction]
    made = replace(
        start(
            Kind.CONV,
            "aten.convolution" if direction == "forward" else "aten.convolution_backward",
            dtype,
            direction,
        ),
        flops=2.0 * prod(dims),
        bytes_read=float(size) * moved[0],
        bytes_written=float(size) * moved[1],
        dims=dims,
    )
    return operation(
        made,
        place,
        {
            "direction": direction,
            "n": n,
            "c_in": c_in,
            "h": _folded(hw)[0],
            "w": _folded(hw)[1],
            "c_out": c_out,
            "k_h": _folded(kernel)[0],
            "k_w": _folded(kernel)[1],
            "stride": _folded(stride),
            "padding": _folded(padding, empty=0),
            "dilation": _folded(dilation),
            "groups": groups,
            "channels_last": channels_last,
            "transposed": transposed,
        },
    )


def conv_output(
    hw: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool = False,
    output_padding: Sequence[int] = (0, 0, 0),
) -> tuple[int, ...]:
    """Lengths of the result along each axis."""
    axes = zip(hw, kernel, stride, padding, dilation, output_padding, strict=False)
    if transposed:
        return tuple((x - 1) * s - 2 * p + d * (k - 1) + o + 1 for x, k, s, p, d, o in axes)
    return tuple((x + 2 * p - d * (k - 1) - 1) // s + 1 for x, k, s, p, d, _ in axes)


def _per_axis(value: Lengths, axes: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * axes
    return tuple(value) * axes if len(value) == 1 else tuple(value)


def _folded(lengths: Sequence[int], empty: int = 1) -> tuple[int, int]:
    """Height and width; one axis is a width, three have the first two in the height."""
    if len(lengths) == 1:
        return empty, lengths[0]
    *high, width = lengths
    return (sum(high) if empty == 0 else prod(high)), width
