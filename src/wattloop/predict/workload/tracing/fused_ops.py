"""Operations that CUDA runs whole: attention, recurrent layers, RMS norm and dropout."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor

from wattloop.predict.workload.costs.sequence import rnn_reserve_elements
from wattloop.predict.workload.tracing.constant_tracking import Known, know


def define(name: str, fake: Any, backward: Any = None, saves: Any = None) -> None:
    """Define an operation for fake tensors only; running it for real is an error."""
    made = torch.library.custom_op(f"wattloop::{name}", fake, mutates_args=(), device_types=())
    made.register_fake(fake)
    if backward is not None:
        made.register_autograd(backward, setup_context=saves)


def attention_algorithm(q: Any, k: Any, v: Any, mask: Any, causal: bool, grouped: bool) -> str:
    """Return the kernel that CUDA chooses: `flash`, `efficient` or `math`.

    The rules of torch's sdp_utils: flash has no masks and no float32, the memory-efficient kernel
    no grouped heads; both want four axes and aligned heads.
    """
    half = q.dtype in (torch.bfloat16, torch.float16)
    if mask is not None and mask.shape[-1] > 1 and mask.stride(-1) != 1:
        return "math"  # no kernel takes a broadcast mask
    square = not causal or q.shape[-2] == k.shape[-2]
    if q.dim() != 4 or not (q.dtype == k.dtype == v.dtype) or q.dtype == torch.float64:
        return "math"
    if half and mask is None and square and q.shape[-1] <= 256 and v.shape[-1] == q.shape[-1]:
        return "flash"
    alignment = 8 if half else 4
    aligned = q.shape[-1] % alignment == 0 and v.shape[-1] % alignment == 0
    return "math" if grouped or not aligned else "efficient"


BIAS_ALIGNMENT = 8
"""The memory-efficient kernel reads a bias whose rows begin at a multiple of so many elements."""


def _bias_of_every_head(bias: Tensor, q: Tensor, keys: int) -> Tensor:
    """Return a trained bias as torch hands it over, so that its gradient is padded and summed."""
    if short := -keys % BIAS_ALIGNMENT:
        bias = torch.nn.functional.pad(bias, (0, short))[..., :keys]
    return bias.expand(*q.shape[:-1], keys)


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
    """Implement `aten::scaled_dot_product_attention`."""
    algorithm = attention_algorithm(q, k, v, attn_mask, is_causal, enable_gqa)
    if algorithm == "math":
        # CUDA runs it as separate kernels too: they are traced one by one.
        out, _ = torch.ops.aten._scaled_dot_product_attention_math(
            q, k, v, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )
        return out
    if _compiled:
        if algorithm == "efficient" and q.dtype in (torch.bfloat16, torch.float16):
            algorithm = "flash+hidden"  # cuDNN's kernel takes masks
        if dropout_p > 0:
            algorithm += "+dropout"
    if attn_mask is not None and attn_mask.requires_grad:
        attn_mask = _bias_of_every_head(attn_mask, q, k.shape[-2])
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
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    trained = mask is not None and mask.requires_grad
    return (
        _laid_out(q, algorithm, q.shape[-1]),
        _laid_out(k, algorithm, k.shape[-1]),
        _laid_out(v, algorithm, v.shape[-1]),
        q.new_empty(*q.shape[:-1], k.shape[-2]) if trained else q.new_empty(0),
    )


def _laid_out(like: Tensor, algorithm: str, width: int) -> Tensor:
    """Return a result of the shape of `like`, in the kernel's memory layout.

    Heads are adjacent, so that joining them is a view; flash attention keeps the order of batch and
    sequence of its input.
    """
    turned = like.transpose(1, 2)
    if algorithm.startswith("flash") and width == like.shape[-1]:
        return torch.empty_like(turned).transpose(1, 2)
    return turned.new_empty(*turned.shape[:-1], width).transpose(1, 2)


def _attention_saves(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, mask, ctx.causal, ctx.algorithm = inputs
    ctx.save_for_backward(q, k, v, mask, *output)
    ctx.set_materialize_grads(False)


def _attention_gradient(ctx: Any, grad: Any, _: Any) -> Any:
    q, k, v, mask, out, rows = ctx.saved_tensors
    *made, bias = torch.ops.wattloop.attention_backward(
        q, k, v, mask, ctx.causal, ctx.algorithm, grad, out, rows
    )
    return (*made, bias if ctx.needs_input_grad[3] else None, None, None)


define("attention", _attention_fake, _attention_gradient, _attention_saves)


define("attention_backward", _attention_backward_fake)


def lstm_cell(
    x: Tensor,
    hx: Any,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Implement `aten::lstm_cell`."""
    hidden, cell = hx
    out, state, _ = torch.ops.wattloop.lstm_gates(x @ w_ih.t(), hidden @ w_hh.t(), cell, b_ih, b_hh)
    return out, state


def gru_cell(
    x: Tensor,
    hx: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Tensor:
    """Implement `aten::gru_cell`."""
    return torch.ops.wattloop.gru_gates(x @ w_ih.t(), hx @ w_hh.t(), hx, b_ih, b_hh)[0]


def _lstm_fake(
    igates: Tensor, hgates: Tensor, state: Tensor, b_ih: Tensor | None, b_hh: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    like = igates.new_empty(igates.shape[0], igates.shape[1] // 4)
    return like, torch.empty_like(like), torch.empty_like(igates)


def _gru_fake(
    igates: Tensor, hgates: Tensor, state: Tensor, b_ih: Tensor | None, b_hh: Tensor | None
) -> tuple[Tensor, Tensor]:
    rows, width = igates.shape[0], igates.shape[1] // 3
    return igates.new_empty(rows, width), igates.new_empty(rows, 5 * width)


def _lstm_backward_fake(grad: Tensor, state: Tensor, gates: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(gates), torch.empty_like(state)


def _gru_backward_fake(grad: Tensor, state: Tensor, gates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    width = 3 * gates.shape[1] // 5
    made = [gates.new_empty(gates.shape[0], width) for _ in range(2)]
    return made[0], made[1], torch.empty_like(state)


def _saves(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.biased = inputs[3] is not None
    ctx.save_for_backward(inputs[2], output[-1])
    ctx.set_materialize_grads(False)


def _lstm_gradient(ctx: Any, grad: Any, grad_state: Any, _: Any) -> Any:
    state, gates = ctx.saved_tensors
    grad = grad_state if grad is None else grad
    to_gates, to_state = torch.ops.wattloop.lstm_gates_backward(grad, state, gates)
    bias = to_gates.sum(0) if ctx.biased else None
    return to_gates, to_gates, to_state, bias, bias


def _gru_gradient(ctx: Any, grad: Any, _: Any) -> Any:
    state, gates = ctx.saved_tensors
    to_input, to_hidden, to_state = torch.ops.wattloop.gru_gates_backward(grad, state, gates)
    biases = (to_input.sum(0), to_hidden.sum(0)) if ctx.biased else (None, None)
    return to_input, to_hidden, to_state, *biases


define("lstm_gates", _lstm_fake, _lstm_gradient, _saves)


define("lstm_gates_backward", _lstm_backward_fake)


define("gru_gates", _gru_fake, _gru_gradient, _saves)


define("gru_gates_backward", _gru_backward_fake)


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
) -> tuple[Tensor, list[Tensor], list[Tensor], Tensor]:
    made = [[torch.empty_like(each) for each in group] for group in (states, weights)]
    # While it runs, the library keeps gradients of all gates.
    gates = _gates(cell) * layers * (2 if bidirectional else 1) * hidden
    room = x.new_empty(gates * prod(x.shape[:-1]))
    return torch.empty_like(x), made[0], made[1], room


def _rnn_saves(ctx: Any, inputs: Any, output: Any) -> None:
    x, states, weights, *ctx.numbers = inputs
    ctx.states, ctx.weights = len(states), len(weights)
    ctx.save_for_backward(x, output[0], output[2], *states, *weights)
    ctx.set_materialize_grads(False)


def _rnn_gradient(ctx: Any, grad: Any, *_: Any) -> Any:
    x, out, reserve, *rest = ctx.saved_tensors
    states, weights = rest[: ctx.states], rest[ctx.states :]
    if grad is None:  # only the last state is used
        grad = torch.zeros_like(out)
    *made, _ = torch.ops.wattloop.rnn_backward(grad, x, states, weights, out, reserve, *ctx.numbers)
    return (*made, *(None for _ in ctx.numbers))


def recurrent(cell: str) -> Any:
    """Implement `aten::lstm.input` and its variants."""

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


def packed(cell: str) -> Any:
    """Implement `aten::lstm.data` and its variants: packed sequences."""

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
        out, *last = recurrent(cell)(
            x, hx, params, has_biases, num_layers, dropout, train, bidirectional, False
        )
        return (out.view(data.shape[0], -1), *last)

    return kernel


def packing(note: Callable[[str], None]) -> Any:
    """Implement `aten::_pack_padded_sequence`, with all sequences of full length."""

    def kernel(x: Tensor, lengths: Tensor, batch_first: bool) -> Any:
        note("sequences that are packed are taken to have their full length")
        steps_first = x.transpose(0, 1) if batch_first else x
        steps, batch = steps_first.shape[:2]
        data = steps_first.clone(memory_format=torch.contiguous_format).flatten(0, 1)
        sizes = torch.full((steps,), batch, dtype=torch.int64)
        know(sizes, Known(batch))
        return data, sizes

    return kernel


def unpacking(
    data: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: float, total_length: int
) -> Any:
    """Implement `aten::_pad_packed_sequence`, with all sequences of full length."""
    steps = batch_sizes.numel()
    padded = data.clone().unflatten(0, (steps, -1))
    lengths = torch.full((padded.shape[1],), steps, dtype=torch.int64)
    know(lengths, Known(steps))
    return (padded.transpose(0, 1) if batch_first else padded), lengths


def _gates(cell: str) -> int:
    return {"lstm": 4, "gru": 3, "rnn": 1}[cell]


define("rnn", _rnn_fake, _rnn_gradient, _rnn_saves)


define("rnn_backward", _rnn_backward_fake)


# Each is a custom operation with fake and autograd formulas; during a trace torch's dispatcher
# routes calls of the original to it (`whole_operations`).


_compiled = False
"""Whether the step that is traced runs under `torch.compile`."""


@contextmanager
def whole_operations(note: Callable[[str], None], *, compiled: bool = False) -> Iterator[None]:
    """Keep attention, recurrent layers, RMS norm and dropout whole within this context.

    `note` receives assumptions about data.
    """
    global _compiled  # noqa: PLW0603 - traces run one at a time
    library = torch.library.Library("aten", "IMPL")
    _compiled = compiled
    try:
        for name, kernel in _REPLACED.items():
            library.impl(name, kernel, "AutogradCPU")
        library.impl("_pack_padded_sequence", packing(note), "AutogradCPU")
        yield
    finally:
        _compiled = False
        library._destroy()


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
    ctx.set_materialize_grads(False)


def _rms_norm_gradient(ctx: Any, grad: Any, _: Any) -> Any:
    x, weight, rows = ctx.saved_tensors
    to_x, to_weight = torch.ops.wattloop.rms_norm_backward(x, weight, ctx.columns, grad, rows)
    return to_x, (None if weight is None else to_weight), None


def _dropout(x: Tensor, p: float, train: bool) -> Tensor:
    if p == 0 or not train or x.numel() == 0:
        return x
    return torch.ops.aten.native_dropout(x, p, train)[0]


define("rms_norm", _rms_norm_fake, _rms_norm_gradient, _rms_norm_saves)


define("rms_norm_backward", _rms_norm_backward_fake)


_REPLACED = {
    "scaled_dot_product_attention": attention,
    "lstm.input": recurrent("lstm"),
    "gru.input": recurrent("gru"),
    "rnn_tanh.input": recurrent("rnn"),
    "rnn_relu.input": recurrent("rnn"),
    "lstm.data": packed("lstm"),
    "gru.data": packed("gru"),
    "rnn_tanh.data": packed("rnn"),
    "rnn_relu.data": packed("rnn"),
    "_pad_packed_sequence": unpacking,
    "lstm_cell": lstm_cell,
    "gru_cell": gru_cell,
    "rms_norm": _rms_norm,
    "dropout": _dropout,
}
