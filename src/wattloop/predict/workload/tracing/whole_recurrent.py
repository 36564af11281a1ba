"""Recurrent layers as one operation: all layers and steps, as cuDNN gets them."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from wattloop.predict.workload.costs.recurrent import rnn_reserve_elements
from wattloop.predict.workload.tracing.defining import define
from wattloop.predict.workload.tracing.known import Known, know

__all__ = ["packed", "packing", "recurrent", "unpacking"]


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


def packed(cell: str) -> Any:
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
        out, *last = recurrent(cell)(
            x, hx, params, has_biases, num_layers, dropout, train, bidirectional, False
        )
        return (out.view(data.shape[0], -1), *last)

    return kernel


def packing(note: Callable[[str], None]) -> Any:
    """The kernel of `aten::_pack_padded_sequence`, with all sequences of full length."""

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
    """The kernel of `aten::_pad_packed_sequence`, with all sequences of full length."""
    steps = batch_sizes.numel()
    padded = data.clone().unflatten(0, (steps, -1))
    lengths = torch.full((padded.shape[1],), steps, dtype=torch.int64)
    know(lengths, Known(steps))
    return (padded.transpose(0, 1) if batch_first else padded), lengths


def _gates(cell: str) -> int:
    return {"lstm": 4, "gru": 3, "rnn": 1}[cell]


define("rnn", _rnn_fake, _rnn_gradient, _rnn_saves)
define("rnn_backward", _rnn_backward_fake)
