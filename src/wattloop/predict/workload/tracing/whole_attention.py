"""Attention as one operation, by the kernel that CUDA would choose."""

from typing import Any

import torch
from torch import Tensor

from wattloop.predict.workload.tracing.defining import define

__all__ = ["attention", "attention_algorithm"]


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


def attention(
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
    """The kernel of `aten::scaled_dot_product_attention`."""
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
    batch, heads, length, _ = q.shape
    rows = q.new_empty(batch, heads, length, dtype=torch.float32)
    return _laid_out(q, algorithm, v.shape[-1]), rows


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
    return (
        _laid_out(q, algorithm, q.shape[-1]),
        _laid_out(k, algorithm, k.shape[-1]),
        _laid_out(v, algorithm, v.shape[-1]),
    )


def _laid_out(like: Tensor, algorithm: str, width: int) -> Tensor:
    """A result of the shape of `like`, in memory as the kernel lays it out.

    Heads lie beside each other, so that joining them is a view; flash attention keeps the order
    of batch and sequence that its input has.
    """
    turned = like.transpose(1, 2)
    if algorithm == "flash" and width == like.shape[-1]:
        return torch.empty_like(turned).transpose(1, 2)
    return turned.new_empty(*turned.shape[:-1], width).transpose(1, 2)


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


define("attention", _attention_fake, _attention_gradient, _attention_saves)
define("attention_backward", _attention_backward_fake)
