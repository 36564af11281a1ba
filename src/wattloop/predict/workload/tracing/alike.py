"""Which modules are alike: same class, same shapes, same settings, all the way down."""

import functools
from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["structure_of"]


def structure_of(module: Any, position: str = "") -> tuple[Any, ...]:
    """A value that is equal for modules that do the same on the same inputs.

    `position` is the module's index among its siblings: settings that merely repeat it (the
    number of a layer) do not count as different.
    """
    return (
        type(module),
        module.training,
        tuple((name, _tensor(each)) for name, each in module._parameters.items()),
        tuple((name, _tensor(each)) for name, each in module._buffers.items()),
        tuple(
            (name, _setting(name, value, position))
            for name, value in sorted(vars(module).items())
            if name not in _MACHINERY
        ),
        len(module._forward_hooks) + len(module._forward_pre_hooks),
        tuple(
            (name, None if each is None else structure_of(each, position))
            for name, each in module._modules.items()
        ),
    )


def _tensor(tensor: Any) -> Any:
    if tensor is None:
        return None
    return tuple(tensor.shape), tensor.dtype, tensor.requires_grad


def _setting(name: str, value: Any, position: str) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return "position" if str(value) == position and _numbers(name) else value
    if isinstance(value, float):
        # Rates of dropout differ from layer to layer; what they do does not.
        return "fraction" if 0 < value < 1 else value
    if value is None or isinstance(value, (bool, str, bytes, torch.dtype)):
        return value
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, (list, tuple)):
        return tuple(_setting(name, each, position) for each in value)
    if isinstance(value, Mapping):
        return tuple((str(key), _setting(str(key), each, position)) for key, each in value.items())
    if isinstance(value, functools.partial):
        return _setting(name, (value.func, value.args, value.keywords), position)
    if callable(value) and hasattr(value, "__code__"):
        return value.__code__
    return type(value), id(value)


def _numbers(name: str) -> bool:
    """Whether a setting of that name can be the number of a layer."""
    return any(part in name for part in ("layer", "idx", "index", "block", "depth", "_id"))


_MACHINERY = frozenset(vars(torch.nn.Module())) | {"training", "forward"}
"""What every module has; compared by hand above."""
