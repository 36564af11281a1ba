"""A factory may convert what it made: `.to(...)`, `.bfloat16()`, channels last."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["conversions_work"]


@contextmanager
def conversions_work() -> Iterator[None]:
    """Modules of fake tensors can be converted in here.

    Torch swaps the contents of fake weights, which it refuses for those that anyone refers to
    (the fake mode does); new ones are put in their place here, the same for weights that are tied.
    """
    kind: Any = torch.nn.Module
    original = kind._apply
    made: dict[tuple[int, int], tuple[Any, Any, Any]] = {}

    def convert(change: Callable[[Any], Any], tensor: Any) -> Any:
        key = (id(change), id(tensor))
        if key not in made:
            with torch.no_grad():
                new = change(tensor)
            if isinstance(tensor, torch.nn.Parameter) and new is not tensor:
                new = torch.nn.Parameter(new, requires_grad=tensor.requires_grad)
            made[key] = (new, change, tensor)  # the last two: so that their ids stay theirs
        return made[key][0]

    def apply(self: Any, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        for each in self.children() if recurse else ():
            each._apply(fn)
        for held in (self._parameters, self._buffers):
            for name, tensor in held.items():
                if tensor is not None:
                    held[name] = convert(fn, tensor)
        return self

    kind._apply = apply
    try:
        yield
    finally:
        kind._apply = original
