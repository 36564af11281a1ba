"""Convolutions: cost, rules of convolution and its gradients, and cuDNN's workspace."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, prod
from typing import Any, Unpack

from wattloop.predict.workload.costs.call import (
    Call,
    OpContext,
    element_bytes,
    make_operation,
    tensor_bytes,
)
from wattloop.predict.workload.costs.stream import elementwise, reduction
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
    """Return one pass of a convolution of `n` images of `c_in` channels and size `hw` (of the
    input).

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
    return make_operation(
        Kind.CONV,
        "aten.convolution" if direction == "forward" else "aten.convolution_backward",
        dtype,
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
        direction=direction,
        flops=2.0 * prod(dims),
        bytes_read=float(size) * moved[0],
        bytes_written=float(size) * moved[1],
        dims=dims,
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
    axes = zip(hw, kernel, stride, padding, dilation, output_padding, strict=False)
    if transposed:
        return tuple((x - 1) * s - 2 * p + d * (k - 1) + o + 1 for x, k, s, p, d, o in axes)
    return tuple((x + 2 * p - d * (k - 1) - 1) // s + 1 for x, k, s, p, d, _ in axes)


def _per_axis(value: Lengths, axes: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * axes
    return tuple(value) * axes if len(value) == 1 else tuple(value)


def _folded(lengths: Sequence[int], empty: int = 1) -> tuple[int, int]:
    """Return height and width; one axis is a width, three have the first two in the height."""
    if len(lengths) == 1:
        return empty, lengths[0]
    *high, width = lengths
    return (sum(high) if empty == 0 else prod(high)), width


def _forward(call: Call) -> list[Operation]:
    x, weight, bias = call.args[:3]
    place = call.place
    y = call.result
    size = y.element_size()
    if bias is not None:
        # The library has no bias: it is added to the result in a separate pass.
        place["bytes_read"] = place.get("bytes_read", 0.0) - bias.numel() * bias.element_size()
    made = [_conv(call, "forward", x, weight, call.args[3:9], place)]
    if bias is not None:
        made.append(
            elementwise(
                y.numel(),
                1,
                1,
                call.dtype,
                **(
                    call.part
                    | OpContext(op="aten.add_", bytes_read=float(size * (y.numel() + bias.numel())))
                ),
            )
        )
    return made


def _backward(call: Call) -> list[Operation]:
    grad, x, weight = call.args[:3]
    rest = call.args[4:10]
    to_data, to_weight, to_bias = call.args[10]
    made = []
    if to_data:
        made.append(_conv(call, "data", x, weight, rest, call.part))
    if to_weight:
        made.append(_conv(call, "weight", x, weight, rest, call.part))
    if to_bias:
        channels = grad.shape[1]
        made.append(
            reduction(grad.numel(), channels, call.dtype, **(call.part | OpContext(op="aten.sum")))
        )
    # The host makes one call for all parts.
    return [replace(each, calls=1 if index == 0 else 0) for index, each in enumerate(made)]


def _conv(
    call: Call, direction: str, x: Any, weight: Any, rest: Any, place: OpContext
) -> Operation:
    stride, padding, dilation, transposed, output_padding, groups = rest
    n, c_in = x.shape[:2]
    c_out = weight.shape[1] * groups if transposed else weight.shape[0]
    return conv(
        direction,
        n,
        c_in,
        tuple(x.shape[2:]),
        c_out,
        tuple(weight.shape[2:]),
        stride=stride,
        padding=padding,
        dilation=dilation,
        groups=groups,
        dtype=call.product_dtype,
        channels_last=is_channels_last(x) or is_channels_last(weight),
        transposed=transposed,
        output_padding=output_padding,
        **place,
    )


def is_channels_last(tensor: Any) -> bool:
    """Return whether channels are contiguous in memory, as tensor cores need."""
    import torch

    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if tensor.dim() not in formats or prod(tensor.shape[2:]) == 1:
        return False
    return bool(
        tensor.is_contiguous(memory_format=formats[tensor.dim()]) and not tensor.is_contiguous()
    )


RULES: dict[str, Callable[[Call], Operation | list[Operation]]] = {
    "aten.convolution": _forward,
    "aten._convolution": _forward,
    "aten.convolution_backward": _backward,
}


# Workspace of cuDNN.
#
# Tensor cores convolve pictures with channels last. Where tensors come with channels first, cuDNN
# copies all three of a call (picture, weight, result) into a workspace, and needs
#
#     bytes(x) + bytes(w) + bytes(y)
#
# which was found within 10% for 80% of 981 such convolutions measured on an H200 (86% of those of
# 16 MB or more; cuDNN 9.19, benchmarks/data/h200, windows larger than one pixel, forward and
# gradient of the data). The gradient of the weight takes that (55%) or more. A window of one
# pixel is a plain product and needs no copy (98% of 218).
#
# In fp32 the gradient of a 3x3 weight is made by Winograd's F(4x4, 3x3) in steps of its own: every
# tile of 4 x 4 pixels of picture and result, and every window, becomes 36 numbers,
#
#     36 (n tiles (c_in + c_out) + c_in c_out) x 4 bytes,    tiles = ceil(height / 4) ceil(width /
#     4)
#
# within 10% for 72% of 146. Other convolutions in fp32 mostly take nothing; for some cuDNN
# chooses an FFT with gigabytes, by no rule that we know.

TENSOR_CORES = frozenset(("bf16", "fp16", "tf32"))
ALIGNED = 8
"""Channels are copied as they are where their number is a multiple of this."""
SMALL_SIDE = 8
"""Pictures up to this wide: for cuDNN the gradient of a 1x1 weight is not a plain product."""
FEWEST_CHANNELS = 32
"""With fewer, as those of a first layer, Winograd is not chosen."""
MANY_PIXELS = 512
"""Number of single pixels from which cuDNN computes the gradient of a 1x1 weight for each alone, in
tf32.
"""


def workspace_bytes(call: Call) -> int:
    """Return the bytes in addition to inputs and results while this call runs; 0 where unknown."""
    if call.name == "aten.convolution":
        x, weight = call.args[:2]
        return _taken(call, x, weight, call.result, call.args[3:9], backward=False)
    if call.name == "aten.convolution_backward":
        y, x, weight = call.args[:3]
        return _taken(call, x, weight, y, call.args[4:10], backward=True)
    return 0


def _taken(call: Call, x: Any, weight: Any, y: Any, rest: Any, *, backward: bool) -> int:
    stride, groups = rest[0], rest[5]
    if groups != 1 or is_channels_last(x) or is_channels_last(weight):
        return 0
    if call.product_dtype == "fp32":
        return _winograd(x, weight, y) if backward and max(stride) == 1 else 0
    if call.product_dtype not in TENSOR_CORES:
        return 0
    if x.shape[1] % ALIGNED or y.shape[1] % ALIGNED:
        return 0
    copies = int(tensor_bytes(x) + tensor_bytes(weight) + tensor_bytes(y))
    if prod(weight.shape[2:]) > 1:
        return copies
    if max(stride) > 1:
        return 0 if call.product_dtype == "tf32" else copies
    if not backward:
        return 0
    side = max(x.shape[2:])
    if side > 1:
        return copies if side <= SMALL_SIDE else 0
    single = call.product_dtype == "tf32" and x.shape[0] >= MANY_PIXELS
    return 4 * x.shape[0] * x.shape[1] * y.shape[1] if single else 0


def _winograd(x: Any, weight: Any, y: Any) -> int:
    n, c_in = x.shape[:2]
    c_out = y.shape[1]
    if tuple(weight.shape[2:]) != (3, 3) or min(c_in, c_out) < FEWEST_CHANNELS:
        return 0
    tiles = prod(ceil(side / 4) for side in y.shape[2:])
    return int(36 * (n * tiles * (c_in + c_out) + c_in * c_out) * 4)
