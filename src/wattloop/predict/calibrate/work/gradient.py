"""Backward of a forward function, alone."""

from collections.abc import Callable, Sequence
from typing import Any

from wattloop.predict.calibrate.bench import Bench, Work

__all__ = ["directed"]


def directed(
    bench: Bench,
    backward: bool,
    function: Callable[..., Any],
    inputs: Callable[[], Sequence[Any]],
    set_bytes: float,
) -> Work:
    """The function on fresh inputs, or its gradient with a graph that is kept.

    All floating-point inputs get a gradient but those with an attribute `constant`.
    """
    torch = bench.torch

    def make() -> Callable[[], Any]:
        values = inputs()
        if not backward:
            return lambda: _forward(torch, function, values)
        leaves = [_leaf(value) for value in values]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        with torch.enable_grad():
            result = function(*leaves)
        gradient = bench.normal(tuple(result.shape), result.dtype)
        return lambda: torch.autograd.grad(result, wanted, gradient, retain_graph=True)

    return bench.sets(make, set_bytes, most=6 if backward else 24)


def _forward(torch: Any, function: Callable[..., Any], values: Sequence[Any]) -> Any:
    with torch.no_grad():
        return function(*values)


def _leaf(value: Any) -> Any:
    """A leaf that wants a gradient, unless the tensor holds whole numbers or is marked constant."""
    if not value.dtype.is_floating_point or getattr(value, "constant", False):
        return value
    return value.detach().requires_grad_()
