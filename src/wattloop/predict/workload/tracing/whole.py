"""Operations that CUDA runs as one kernel or library call and CPU would take apart.

Each is an operation of our own with fake and autograd formulas; while a trace runs, the
dispatcher of torch gives calls of the original to it (`whole_operations`).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor

from wattloop.predict.workload.costs.recurrent import rnn_reserve_elements

__all__ = ["attention_algorithm", "whole_operations"]


@contextmanager
def whole_operations() -> Iterator[None]:
    """Attention, recurrent layers, RMS norm and dropout stay whole in here."""
    library = torch.library.Library("aten", "IMPL")
    try:
        for name, kernel in _REPLACED.items():
            library.impl(name, kernel, "AutogradCPU")
        yield
    finally:
        library._destroy()


def attention_algorithm(q: Any, k: Any, v: Any, mask: Any, causal: bool, grouped: bool) -> str:
    """Which kernel CUDA takes: `flash`, `efficient` or `math`.

    The rules of torch's sdp_utils: flash has no masks and no float32, the memory-efficient kernel
    no grouped heads; both want four axes and aligned heads.
    """
    half = q.dtype in (torch.bfloat16, torch.float16)
    square = not causal or q.shape[-2] == k.shape[-2]
    if q.dim() != 4 or not (q.dtype == k.dtype == v.dtype) or q.dtype == torch.float64:
        return "math"
    if half and mask is None and square and q.shape[-1] <= 256 and v.shape[-1] == q.shape[-1]:
        return "flash"
    alignment = 8 if half else 4
    aligned = q.shape[-1] % alignment == 0 and v.shape[-1] % alignment == 0
    if grouped or not aligned or (mask is not None and mask.requires_grad):
        return "math"
    return "efficient"


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    algorithm = attention_algorithm(q, k, v, attn_mask, is_causal, enable_gqa)
    if algorithm == "math":
        # CUDA runs it as separate kernels too: they are traced one by one.
        out, _ = torch.ops.aten._scaled_dot_product_attention_math(
            q, k, v, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )
        return out
    return torch.ops.wattloop.attention(q, k, v, attn_mask, is_causal, algorithm)[0]


def _attention_fake(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, algorithm: str
) -> tuple[Tensor, Tensor]:
    # The result lies as the query does: heads beside each other, so that joining them is a view.
    batch, heads, length, _ = q.shape
    out = q.new_empty(batch, length, heads, v.shape[-1]).transpose(1, 2)
    return out, q.new_empty(batch, heads, length, dtype=torch.float32)


def _attention_backward_fake(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    causal: bool,
    algorithm: str,
    grad: Tensor,
    out: Tensor,
    rows: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _attention_saves(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, mask, ctx.causal, ctx.algorithm = inputs
    ctx.save_for_backward(q, k, v, mask, *output)
    ctx.set_materialize_grads(False)


def _attention_gradient(ctx: Any, grad: Any, _: Any) -> Any:
    q, k, v, mask, out, rows = ctx.saved_tensors
    made = torch.ops.wattloop.attention_backward(
        q, k, v, mask, ctx.causal, ctx.algorithm, grad, out, rows
    )
    return (*made, None, None, None)


def _rnn_fake(  # noqa: PLR0913, PLR0917 - a recurrent layer has that many numbers
    x: Tensor,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    cell: str,
    hidden: int,
    layers: int,
    bidirectional: bool,
    batch_first: bool,
    biased: bool,
    training: bool,
) -> tuple[Tensor, list[Tensor], Tensor]:
    ways = 2 if bidirectional else 1
    projected = states[0].shape[-1]
    out = x.new_empty(*x.shape[:-1], projected * ways)
    kept = 0
    if training:
        kept = rnn_reserve_elements(cell, layers, hidden, 1, prod(x.shape[:-1]), bidirectional)
    return out, [torch.empty_like(each) for each in states], x.new_empty(kept)


def _rnn_backward_fake(  # noqa: PLR0913, PLR0917 - what the library reads
    grad: Tensor,
    x: Tensor,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    out: Tensor,
    reserve: Tensor,
    cell: str,
    hidden: int,
    layers: int,
    bidirectional: bool,
    batch_first: bool,
    biased: bool,
    training: bool,
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    made = [[torch.empty_like(each) for each in group] for group in (states, weights)]
    return torch.empty_like(x), made[0], made[1]


def _rnn_saves(ctx: Any, inputs: Any, output: Any) -> None:
    x, states, weights, *ctx.numbers = inputs
    ctx.states, ctx.weights = len(states), len(weights)
    ctx.save_for_backward(x, output[0], output[2], *states, *weights)


def _rnn_gradient(ctx: Any, grad: Any, *_: Any) -> Any:
    x, out, reserve, *rest = ctx.saved_tensors
    states, weights = rest[: ctx.states], rest[ctx.states :]
    made = torch.ops.wattloop.rnn_backward(grad, x, states, weights, out, reserve, *ctx.numbers)
    return (*made, *(None for _ in ctx.numbers))


def _recurrent(cell: str) -> Any:
    """The kernel of `aten::lstm.input` and its like."""

    def kernel(
        x: Tensor,
        hx: Any,
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        states = list(hx) if cell == "lstm" else [hx]
        hidden = params[1].shape[-1] if cell == "rnn" else params[0].shape[0] // _gates(cell)
        out, last, _ = torch.ops.wattloop.rnn(
            x,
            states,
            list(params),
            cell,
            hidden,
            num_layers,
            bidirectional,
            batch_first,
            has_biases,
            train,
        )
        return (out, *last)

    return kernel


def _packed(cell: str) -> Any:
    """The kernel of `aten::lstm.data` and its like: sequences packed one step after the other."""

    def kernel(
        data: Tensor,
        batch_sizes: Tensor,
        hx: Any,
        params: Sequence[Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
    ) -> Any:
        steps = batch_sizes.numel()
        x = data.view(steps, -1, data.shape[-1])
        out, *last = _recurrent(cell)(
            x, hx, params, has_biases, num_layers, dropout, train, bidirectional, False
        )
        return (out.view(data.shape[0], -1), *last)

    return kernel


def _gates(cell: str) -> int:
    return {"lstm": 4, "gru": 3, "rnn": 1}[cell]


def _rms_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    return torch.ops.wattloop.rms_norm(x, weight, prod(normalized_shape))[0]


def _rms_norm_fake(x: Tensor, weight: Tensor | None, columns: int) -> tuple[Tensor, Tensor]:
    rows = x.new_empty(x.numel() // max(columns, 1), dtype=torch.float32)
    return torch.empty_like(x), rows


def _rms_norm_backward_fake(
    x: Tensor, weight: Tensor | None, columns: int, grad: Tensor, rows: Tensor
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight if weight is not None else rows)


def _rms_norm_saves(ctx: Any, inputs: Any, output: Any) -> None:
    x, weight, ctx.columns = inputs
    ctx.save_for_backward(x, weight, output[1])


def _rms_norm_gradient(ctx: Any, grad: Any, _: Any) -> Any:
    x, weight, rows = ctx.saved_tensors
    to_x, to_weight = torch.ops.wattloop.rms_norm_backward(x, weight, ctx.columns, grad, rows)
    return to_x, (None if weight is None else to_weight), None


def _dropout(x: Tensor, p: float, train: bool) -> Tensor:
    if p == 0 or not train or x.numel() == 0:
        return x
    return torch.ops.aten.native_dropout(x, p, train)[0]


def _define(name: str, fake: Any, backward: Any = None, saves: Any = None) -> None:
    """An operation that exists on fake tensors only, so that running it for real is an error."""
    made = torch.library.custom_op(f"wattloop::{name}", fake, mutates_args=(), device_types=())
    made.register_fake(fake)
    if backward is not None:
        made.register_autograd(backward, setup_context=saves)


_define("attention", _attention_fake, _attention_gradient, _attention_saves)
_define("attention_backward", _attention_backward_fake)
_define("rnn", _rnn_fake, _rnn_gradient, _rnn_saves)
_define("rnn_backward", _rnn_backward_fake)
_define("rms_norm", _rms_norm_fake, _rms_norm_gradient, _rms_norm_saves)
_define("rms_norm_backward", _rms_norm_backward_fake)

_REPLACED = {
    "scaled_dot_product_attention": _attention,
    "lstm.input": _recurrent("lstm"),
    "gru.input": _recurrent("gru"),
    "rnn_tanh.input": _recurrent("rnn"),
    "rnn_relu.input": _recurrent("rnn"),
    "lstm.data": _packed("lstm"),
    "gru.data": _packed("gru"),
    "rnn_tanh.data": _packed("rnn"),
    "rnn_relu.data": _packed("rnn"),
    "rms_norm": _rms_norm,
    "dropout": _dropout,
}
