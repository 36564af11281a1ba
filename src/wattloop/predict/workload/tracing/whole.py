"""Operations that CUDA runs as one kernel or library call and CPU would take apart.

Each is an operation of our own with fake and autograd formulas; while a trace runs, the
dispatcher of torch gives calls of the original to it (`whole_operations`).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor

from wattloop.predict.workload.tracing.defining import define
from wattloop.predict.workload.tracing.whole_attention import attention
from wattloop.predict.workload.tracing.whole_cells import gru_cell, lstm_cell
from wattloop.predict.workload.tracing.whole_recurrent import packed, packing, recurrent, unpacking

__all__ = ["whole_operations"]


@contextmanager
def whole_operations(note: Callable[[str], None]) -> Iterator[None]:
    """Attention, recurrent layers, RMS norm and dropout stay whole in here.

    `note` is told what is assumed of data.
    """
    library = torch.library.Library("aten", "IMPL")
    try:
        for name, kernel in _REPLACED.items():
            library.impl(name, kernel, "AutogradCPU")
        library.impl("_pack_padded_sequence", packing(note), "AutogradCPU")
        yield
    finally:
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
