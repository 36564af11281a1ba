"""Blocks that are alike are traced once.

Of calls that are alike (same parent, alike modules, inputs of the same shapes) the first two run,
and the last one of the siblings; those between stand for the second and are skipped: they give
outputs of the right shapes, gradients for inputs and parameters, and take the memory that the
second one took. The first may differ from the rest (weights that are cast only once), the last
too (it is the first to give gradients to what all share).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from wattloop.predict.workload.operation import Phase
from wattloop.predict.workload.tracing.alike import structure_of
from wattloop.predict.workload.tracing.block_calls import (
    Alike,
    BlockCall,
    comparable,
    is_plain,
    new_bytes,
    placed,
)
from wattloop.predict.workload.tracing.recorder import Recorder
from wattloop.predict.workload.tracing.skipping import Taken, skipped

__all__ = ["Blocks"]


class Blocks:
    """Watches calls of modules that have likenesses, and skips what was traced already."""

    def __init__(self, model: Any, recorder: Recorder) -> None:
        self.calls: list[BlockCall] = []
        self._recorder = recorder
        self._paths = recorder.paths
        self._memory = recorder.memory
        self._kinds: dict[int, Any] = {}
        self._last: set[int] = set()
        self._called: set[int] = set()
        self._alike: dict[Any, Alike] = {}
        self.absorbed: set[int] = set()
        self._find(model)

    def times(self, block: int) -> int:
        """How often what ran in this call of a block happens."""
        return prod(1 + len(self.calls[each].others) for each in self.chain(block))

    def chain(self, block: int) -> Iterator[int]:
        """A call of a block and those it ran inside of."""
        while block >= 0:
            yield block
            block = self.calls[block].outer

    def groups(self) -> list[list[int]]:
        """Calls that are alike and ran, where there were more than one."""
        return [each.ran for each in self._alike.values() if len(each.ran) > 1]

    def absorb(self, block: int, by: int) -> None:
        """A call that ran turns out to be like another, which stands for it from now on."""
        self.absorbed.add(block)
        self.calls[by].others.append(self.calls[block].path)

    @contextmanager
    def watched(self, model: Any) -> Iterator[None]:
        """Calls of blocks are watched in here."""
        changed: list[tuple[Any, type]] = []
        try:
            for each in model.modules():
                if id(each) in self._kinds:
                    changed.append((each, type(each)))
                    each.__class__ = self._watching(type(each))
            yield
        finally:
            for each, kind in changed:
                each.__class__ = kind

    def called(self, module: Any, kind: type, args: Any, kwargs: Any) -> Any:
        """A block was called: run it or skip it."""
        if not self._skippable() or id(module) in self._called:
            # A module that is called again shares its weights with the first call.
            return kind.__call__(module, *args, **kwargs)
        self._called.add(id(module))
        leaves, shape = tree_flatten((args, kwargs))
        key = (self._kinds[id(module)], shape, tuple(comparable(each) for each in leaves))
        try:
            alike = self._alike.setdefault(key, Alike())
        except TypeError:  # something among the inputs cannot be compared
            return kind.__call__(module, *args, **kwargs)
        self._correct(alike)
        ran = self.calls[alike.ran[1]] if len(alike.ran) > 1 else None
        if ran is not None and ran.outputs is not None and id(module) not in self._last:
            result = self._skip(module, alike, leaves)
        else:
            result = self._run(module, kind, args, kwargs, alike)
        alike.left_bytes = self._memory.live_bytes
        return result

    def here(self) -> int:
        """The call of a block that is running."""
        return self._paths.block

    @contextmanager
    def forgetting(self, block: int) -> Iterator[None]:
        """Memory of a call that is given back in here is that of the calls it stands for, too."""
        before = self._memory.live_bytes
        yield
        size = before - self._memory.live_bytes
        for each in self.chain(block):
            stands_for = self.calls[each].taken
            for taken in stands_for:
                taken.bytes -= size
                self._memory.remove(size)
            size *= 1 + len(stands_for)

    def _run(self, module: Any, kind: type, args: Any, kwargs: Any, alike: Alike) -> Any:
        number = len(self.calls)
        call = BlockCall(self._paths.names[id(module)], self._paths.block)
        self.calls.append(call)
        self._recorder.outer.append(call.outer)
        alike.ran.append(number)
        memory = self._memory
        before, peak = memory.live_bytes, memory.peak_bytes
        memory.peak_bytes = before
        with self._paths.inside(call.path, number):
            result = kind.__call__(module, *args, **kwargs)
        call.rise_bytes = memory.peak_bytes - before
        memory.peak_bytes = max(peak, memory.peak_bytes)
        alike.taken = None
        if len(alike.ran) == 2:
            leaves, shape = tree_flatten(result)
            given = tree_flatten((args, kwargs))[0]
            if all(is_plain(each) for each in leaves):
                places = [placed(each, given) for each in leaves]
                call.outputs = (shape, places)
                call.kept_bytes = memory.live_bytes - before - new_bytes(leaves, places)
        return result

    def _skip(self, module: Any, alike: Alike, given: Sequence[Any]) -> Any:
        second = alike.ran[1]
        ran = self.calls[second]
        path = self._paths.names[id(module)]
        number = len(self.calls)
        self.calls.append(BlockCall(path, self._paths.block))
        self._recorder.outer.append(self._paths.block)
        ran.others.append(path)
        self._recorder.skipped.add(number)
        self._recorder.skipped_paths.update(
            name for each in module.modules() if (name := self._paths.names.get(id(each)))
        )
        taken = alike.taken = Taken(second, ran.kept_bytes, ran.rise_bytes)
        ran.taken.append(taken)
        with self._paths.inside(path, number):
            shape, places = ran.outputs
            made = skipped(self._recorder, taken, module, given, places)
            return tree_unflatten(made, shape)

    def _correct(self, alike: Alike) -> None:
        """Whether a block keeps its input shows only after it: the caller lets go of it.

        After a block that ran, memory changes by one amount until the next call; after a
        skipped one, which keeps nothing, by another. The difference is what was kept.
        """
        gap = self._memory.live_bytes - alike.left_bytes
        if alike.taken is not None and alike.gap_bytes is not None:
            kept = alike.gap_bytes - gap
            alike.taken.bytes += kept
            self._memory.add(kept)
        elif len(alike.ran) == 2:
            alike.gap_bytes = gap

    def _skippable(self) -> bool:
        """Not in a recomputed forward pass, nor while checkpointing watches what is saved."""
        return (
            self._recorder.phase is Phase.FORWARD
            and torch._C._autograd._top_saved_tensors_default_hooks(True) is None
        )

    def _find(self, model: Any) -> None:
        """Modules of more than one layer, with those siblings that are alike."""
        siblings: dict[Any, list[Any]] = {}
        for parent, parent_path in [(each, name) for name, each in model.named_modules()]:
            for name, each in parent._modules.items():
                if each is None or isinstance(each, torch.jit.ScriptModule):
                    continue
                if sum(1 for _ in each.modules()) < _SMALLEST or id(each) in self._kinds:
                    continue
                kind = (parent_path, structure_of(each, name))
                self._kinds[id(each)] = kind
                siblings.setdefault(kind, []).append(each)
        self._last = {id(each[-1]) for each in siblings.values() if len(each) > 1}

    def _watching(self, kind: type) -> type:
        blocks = self

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            return blocks.called(self, kind, args, kwargs)

        same = {"__call__": call, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
        return type(kind.__name__, (kind,), same)


_SMALLEST = 4
"""Modules in a block that is worth watching."""
