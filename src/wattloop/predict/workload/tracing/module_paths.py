"""Module path of each operation, forward and backward.

Forward, it is the innermost module being called. Backward, autograd tells which node it
evaluates; nodes are numbered in the order in which the forward pass made them, and the numbers
at which modules were entered and left are kept.
"""

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

_ACCUMULATES = 2**63
"""Nodes that add to a parameter's gradient have a number beyond all others."""


class Spot(NamedTuple):
    """Path of a module, and the call of a block (see `block_reuse`) that contains it."""

    path: str
    block: int


OUTSIDE = Spot("", -1)


class Paths:
    """Tracker of the modules of a model as they are called.

    Attributes:
        names: of modules, by identity.
        calls: of modules in the forward pass, by block.
        block: the call of a block that is running; set by `blocks`.
        accumulating: whether the operation last asked for adds to a parameter's gradient.
        backward: set by the tracer; modules called from then on are computed again.
    """

    def __init__(self, model: Any) -> None:
        self.names: dict[int, str] = {id(each): name for name, each in model.named_modules()}
        self.calls: dict[int, int] = {}
        self.block = -1
        self.backward = False
        self.accumulating = False
        self._owners: dict[int, str] = {
            id(parameter): name.rpartition(".")[0] for name, parameter in model.named_parameters()
        }
        self._blocks: dict[str, int] = {}
        self._stack: list[str] = []
        self._numbers: list[int] = []
        self._entered: list[Spot] = []

    @property
    def recomputing(self) -> bool:
        """Return whether a module is being called in the backward pass."""
        return self.backward and bool(self._stack)

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Track module calls within this context."""
        hooks = torch.nn.modules.module
        before = hooks.register_module_forward_pre_hook(self._enter)
        after = hooks.register_module_forward_hook(self._leave, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    @contextmanager
    def inside(self, path: str, block: int) -> Iterator[None]:
        """Assign operations within this context to that call of a block."""
        before, self.block = self.block, block
        self._stack.append(path)
        self._mark()
        try:
            yield
        finally:
            self._stack.pop()
            self.block = before
            self._mark()

    def current(self) -> Spot:
        """Return the location of the operation being dispatched."""
        self.accumulating = False
        if self._stack:
            return self._here()
        node = torch._C._current_autograd_node()
        if node is None:
            return OUTSIDE
        number = node._sequence_nr()
        if number >= _ACCUMULATES:
            self.accumulating = True
            path = self._owners.get(id(getattr(node, "variable", None)), "")
            return Spot(path, self._block_of(path))
        at = bisect_right(self._numbers, number) - 1
        return self._entered[at] if at >= 0 else OUTSIDE

    def _here(self) -> Spot:
        path = self._stack[-1] if self._stack else ""
        return Spot(path, self._block_of(path) if self.backward else self.block)

    def _block_of(self, path: str) -> int:
        """Return the block of a module, or of its parent: some modules are never called."""
        while path not in self._blocks:
            if not path:
                return -1
            path = path.rpartition(".")[0]
        return self._blocks[path]

    def _enter(self, module: Any, _: Any) -> None:
        path = self.names.get(id(module))
        if path is None:
            # A module outside the model, such as a loss.
            path = self._stack[-1] if self._stack else type(module).__name__.lower()
        if not self.backward:
            self._blocks.setdefault(path, self.block)
        self._stack.append(path)
        block = self._here().block
        self.calls[block] = self.calls.get(block, 0) + 1
        self._mark()

    def _leave(self, *_: Any) -> None:
        if self._stack:
            self._stack.pop()
        self._mark()

    def _mark(self) -> None:
        number = torch.autograd._get_sequence_nr()
        spot = self._here()
        if self._numbers and self._numbers[-1] == number:
            self._entered[-1] = spot
            return
        self._numbers.append(number)
        self._entered.append(spot)
