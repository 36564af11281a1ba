"""What is differentiated: the model's own loss, one that was asked for, else a mean."""

from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from wattloop.core.errors import ConfigError
from wattloop.predict.workload.tracing.request import Request
from wattloop.predict.workload.tracing.scalars import Guesses

__all__ = ["loss_of"]


def loss_of(request: Request, output: Any, targets: Any, guesses: Guesses) -> Any:
    """A number to differentiate; None where nothing is."""
    if request.loss is not None:
        return _asked_loss(request.loss, output, targets)
    own = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if isinstance(own, torch.Tensor):
        return own
    if not request.training:
        return None
    first = _first_float(output)
    if first is None:
        raise ConfigError("the model's output has no floating-point tensor to differentiate")
    guesses.note("no loss was given and the model has none: the mean of its output is taken")
    return first.mean()


def _asked_loss(loss: Any, output: Any, targets: Any) -> Any:
    if callable(loss):
        return loss(output) if targets is None else loss(output, targets)
    scores = _first_float(output)
    if loss == "mse":
        aim = torch.empty_like(scores) if targets is None else targets
        return torch.nn.functional.mse_loss(scores, aim)
    if scores.dim() > 2 and targets is None:
        scores = scores.flatten(0, -2)  # a class for each position, classes last
    if targets is None:
        targets = torch.empty(scores.shape[0], dtype=torch.int64)
    return torch.nn.functional.cross_entropy(scores, targets)


def _first_float(output: Any) -> Any:
    logits = getattr(output, "logits", None)
    for each in (logits, *tree_flatten(output)[0]):
        if isinstance(each, torch.Tensor) and each.is_floating_point():
            return each
    return None
