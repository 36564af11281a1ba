"""Fake tensors stand in for those of a model, which is left as it was."""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_map

from wattloop.core.errors import ConfigError
from wattloop.predict.workload.tracing.known import Known, know

__all__ = ["on_fake_weights"]


@contextmanager
def on_fake_weights(module: Any) -> Iterator[None]:
    """Parameters and buffers are replaced by fake ones in here.

    After it the model is as it was, with what its forward pass keeps in attributes undone.
    """
    _no_lazy_ones(module)
    kept = [(each, dict(vars(each)), _contents(each)) for each in module.modules()]
    known: dict[int, Any] = {}
    for each, attributes, _ in kept:
        for held in (each._parameters, each._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    held[name] = _stand_in(tensor, known)
        for name, value in attributes.items():
            if isinstance(value, torch.Tensor) or type(value) in (list, tuple):
                vars(each)[name] = tree_map(lambda one: _away(one, known), value)
    try:
        yield
    finally:
        for each, attributes, contents in kept:
            vars(each).clear()
            vars(each).update(attributes)
            for container, content in contents:
                container.clear()
                (container.extend if isinstance(container, list) else container.update)(content)


def _contents(module: Any) -> list[tuple[Any, Any]]:
    """Lists, dictionaries and sets among the attributes, each with a copy."""
    held = (value for value in vars(module).values() if type(value) in _CONTAINERS)
    return [(each, each.copy()) for each in held]


def _stand_in(tensor: Any, known: dict[int, Any]) -> Any:
    """The same fake tensor each time a tensor is met."""
    if id(tensor) not in known:
        known[id(tensor)] = _fake_weight(tensor)
    return known[id(tensor)]


def _away(value: Any, known: dict[int, Any]) -> Any:
    """What is on the CPU goes together with fake tensors, and may be a setting."""
    if isinstance(value, torch.Tensor) and value.device.type != "cpu":
        return _stand_in(value, known)
    return value


def _fake_weight(tensor: Any) -> Any:
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=tensor.requires_grad)
    if tensor.numel() == 1 and tensor.device.type == "cpu" and not isinstance(tensor, FakeTensor):
        with unset_fake_temporarily():
            value = tensor.item()
        if isinstance(value, (int, float)):
            know(made, Known(value))
    return made


def _no_lazy_ones(module: Any) -> None:
    for path, each in module.named_modules():
        for name, tensor in (*each._parameters.items(), *each._buffers.items()):
            if tensor is not None and is_lazy(tensor):
                raise ConfigError(
                    f"model: '{path + '.' if path else ''}{name}' of a {type(each).__name__} has "
                    "no shape before the first call; call the model once on an input, or give "
                    "the layer its input size"
                )


_CONTAINERS = (list, dict, set, OrderedDict)
