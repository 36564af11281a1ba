"""Which module an operation belongs to.

Forward, it is the innermost module being called. Backward, autograd tells which node it
evaluates; nodes are numbered in the order in which the forward pass made them, and the numbers
at which modules were entered and left are kept.
"""

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["Paths"]

_ACCUMULATES = 2**63
"""Nodes that add to a parameter's gradient have a number beyond all others."""


class Paths:
    """Follows the modules of a model as they are called."""

    def __init__(self, model: Any) -> None:
        self.names = {id(each): name for name, each in model.named_modules()}
        self.parameters: dict[int, str] = {
            id(parameter): name.rpartition(".")[0] for name, parameter in model.named_parameters()
        }
        self.calls: dict[str, int] = {}
        self._stack: list[str] = []
        self._numbers: list[int] = []
        self._entered: list[str] = []

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Modules called in here are followed."""
        hooks = torch.nn.modules.module
        before = hooks.register_module_forward_pre_hook(self._enter)
        after = hooks.register_module_forward_hook(self._leave, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    @property
    def here(self) -> str:
        """The innermost module being called."""
        return self._stack[-1] if self._stack else ""

    def current(self) -> str:
        """The module that the operation being dispatched belongs to."""
        if self._stack:
            return self._stack[-1]
        node = torch._C._current_autograd_node()
        if node is None:
            return ""
        number = node._sequence_nr()
        if number >= _ACCUMULATES:
            return self.parameters.get(id(getattr(node, "variable", None)), "")
        at = bisect_right(self._numbers, number) - 1
        return self._entered[at] if at >= 0 else ""

    def _enter(self, module: Any, _: Any) -> None:
        path = self.names.get(id(module))
        if path is None:
            # A module that is not part of the model, such as a loss.
            path = self._stack[-1] if self._stack else type(module).__name__.lower()
        self.calls[path] = self.calls.get(path, 0) + 1
        self._stack.append(path)
        self._mark()

    def _leave(self, *_: Any) -> None:
        if self._stack:
            self._stack.pop()
        self._mark()

    def _mark(self) -> None:
        number = torch.autograd._get_sequence_nr()
        path = self.here
        if self._numbers and self._numbers[-1] == number:
            self._entered[-1] = path
            return
        self._numbers.append(number)
        self._entered.append(path)
