"""Convolution and its gradients, as cuDNN gets them: data, weight and bias apart."""

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from wattloop.predict.workload import costs
from wattloop.predict.workload.costs.place import Place
from wattloop.predict.workload.operation import Operation
from wattloop.predict.workload.rules.call import Call

__all__ = ["RULES", "is_channels_last"]


def _forward(call: Call) -> list[Operation]:
    x, weight, bias = call.args[:3]
    place = call.place
    y = call.result
    size = y.element_size()
    if bias is not None:
        # The library has no bias: it is added to the result in a pass of its own.
        place["bytes_read"] = place.get("bytes_read", 0.0) - bias.numel() * bias.element_size()
    made = [_conv(call, "forward", x, weight, call.args[3:9], place)]
    if bias is not None:
        made.append(
            costs.elementwise(
                y.numel(),
                1,
                1,
                call.dtype,
                **(
                    call.part
                    | Place(op="aten.add_", bytes_read=float(size * (y.numel() + bias.numel())))
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
            costs.reduction(
                grad.numel(), channels, call.dtype, **(call.part | Place(op="aten.sum"))
            )
        )
    # The host makes one call for all parts.
    return [replace(each, calls=1 if index == 0 else 0) for index, each in enumerate(made)]


def _conv(call: Call, direction: str, x: Any, weight: Any, rest: Any, place: Place) -> Operation:
    stride, padding, dilation, transposed, output_padding, groups = rest
    n, c_in = x.shape[:2]
    c_out = weight.shape[1] * groups if transposed else weight.shape[0]
    return costs.conv(
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
    """Whether channels lie together in memory, as tensor cores want them."""
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
