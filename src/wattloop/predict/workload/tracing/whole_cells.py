"""One step of a recurrent layer: two products, then one kernel for all gates, as on CUDA."""

from typing import Any

import torch
from torch import Tensor

from wattloop.predict.workload.tracing.defining import define

__all__ = ["gru_cell", "lstm_cell"]


def lstm_cell(
    x: Tensor,
    hx: Any,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The kernel of `aten::lstm_cell`."""
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
    """The kernel of `aten::gru_cell`."""
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
