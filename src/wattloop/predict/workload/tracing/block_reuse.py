"""Reuse of equal blocks: trace one of them and repeat its operations."""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from wattloop.predict.workload.operation import Operation, Phase
from wattloop.predict.workload.tracing.recorder import Recorder


def structure_of(module: Any, position: str = "") -> tuple[Any, ...]:
    """Return a value that is equal for modules that do the same on the same inputs.

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
    """Return whether a setting of that name can be the number of a layer."""
    return any(part in name for part in ("layer", "idx", "index", "block", "depth", "_id"))


_MACHINERY = frozenset(vars(torch.nn.Module())) | {"training", "forward"}
"""Attributes of every module; compared separately above."""


@dataclass
class SkippedMemory:
    """Memory of a skipped call until its backward pass.

    Attributes:
        second: number of the call that ran in its place.
        bytes: taken now.
        rise_bytes: how far memory rose while that one ran.
    """

    second: int
    bytes: int
    rise_bytes: int


def skipped(
    recorder: Recorder,
    taken: SkippedMemory,
    module: Any,
    given: Sequence[Any],
    places: Sequence[Any],
) -> list[Any]:
    """Return outputs like those of the executed call, connected to inputs and parameters."""
    memory = recorder.memory
    memory.peak_bytes = max(memory.peak_bytes, memory.live_bytes + taken.rise_bytes)
    memory.add(taken.bytes)
    new = [place for place in places if place[0] == "new"]
    differentiable = [place for place in new if place[4]]
    sources = [
        each
        for each in (*given, *module.parameters())
        if isinstance(each, torch.Tensor) and each.requires_grad
    ]
    made: list[Any] = []
    with recorder.paused():
        if differentiable:
            made = list(_Skip.apply(recorder, taken, differentiable, *sources))
        outputs = []
        for place in places:
            if place[0] == "input":
                outputs.append(given[place[1]])
            elif place[0] == "value":
                outputs.append(place[1])
            else:
                outputs.append(made.pop(0) if place[4] else _empty(place))
    memory.add_tensors([each for each in outputs if isinstance(each, torch.Tensor)])
    return outputs


class _Skip(torch.autograd.Function):  # type: ignore[misc]  # torch is not typed here
    """Autograd function that allocates the memory of a block forward and frees it backward."""

    @staticmethod
    def forward(ctx: Any, recorder: Any, taken: SkippedMemory, places: Any, *sources: Any) -> Any:
        ctx.recorder, ctx.taken = recorder, taken
        ctx.shapes = [(tuple(each.shape), each.stride(), each.dtype) for each in sources]
        return tuple(_empty(place) for place in places)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        recorder = ctx.recorder
        memory = recorder.memory
        recorder.skipped_levels.setdefault(ctx.taken.second, []).append(memory.live_bytes)
        memory.remove(ctx.taken.bytes)
        with recorder.paused():
            made = [_empty(("new", *shape)) for shape in ctx.shapes]
        memory.add_tensors(made)
        return (None, None, None, *made)


def _empty(place: Any) -> Any:
    _, shape, stride, dtype, *_ = place
    return torch.empty_strided(shape, stride, dtype=dtype)


@dataclass
class BlockCall:
    """Executed call of a block, and the skipped calls that it represents.

    Attributes:
        path: of the module.
        outer: the call it ran inside of, -1 for none.
        others: paths of the calls that were skipped.
        outputs: shapes of what it gave, to make others by.
        kept_bytes: memory that it left taken, its outputs apart.
        taken: the same of each call that was skipped.
        rise_bytes: how far above its start memory rose while it ran.
    """

    path: str
    outer: int
    others: list[str] = field(default_factory=list)
    outputs: Any = None
    kept_bytes: int = 0
    taken: list[SkippedMemory] = field(default_factory=list)
    rise_bytes: int = 0


@dataclass
class Alike:
    """Equal calls so far.

    Attributes:
        ran: numbers of those that ran.
        left_bytes: memory when the last of them ended.
        gap_bytes: how memory changed between the end of the second and the next call.
        taken: by the last call, when it was skipped.
    """

    ran: list[int] = field(default_factory=list)
    left_bytes: int = 0
    gap_bytes: int | None = None
    taken: SkippedMemory | None = None


def comparable(value: Any) -> Any:
    """Return the properties of an input that equal calls share."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.dtype, value.requires_grad
    if value is None or isinstance(value, (bool, int, float, str, torch.dtype)):
        return value
    return type(value), id(value)


def is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (torch.Tensor, bool, int, float, str))


def placed(value: Any, given: Sequence[Any]) -> Any:
    """Return an output as an input reference, as a shape to create, or unchanged."""
    for index, each in enumerate(given):
        if each is value and isinstance(value, torch.Tensor):
            return ("input", index)
    if isinstance(value, torch.Tensor):
        return ("new", tuple(value.shape), value.stride(), value.dtype, value.requires_grad)
    return ("value", value)


def new_bytes(outputs: Sequence[Any], places: Sequence[Any]) -> int:
    """Return the memory of outputs that the call created itself, each storage once."""
    made = {
        each.untyped_storage()._cdata: int(each.untyped_storage().nbytes())
        for each, place in zip(outputs, places, strict=True)
        if place[0] == "new"
    }
    return sum(made.values())


# Of equal calls (same parent, equal modules, inputs of the same shapes) the first two and the last
# one run. Those between are skipped and counted as the second: they give outputs of the right
# shapes, gradients for inputs and parameters, and allocate the memory of the second. The first may
# differ from the rest (weights that are cast only once), and so may the last (it is the first to
# give gradients to shared tensors).


class Blocks:
    """Tracker of equal module calls that skips those already traced."""

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
        self.add(model)

    def times(self, block: int) -> int:
        """Return how often the operations of this call of a block happen."""
        return prod(1 + len(self.calls[each].others) for each in self.chain(block))

    def chain(self, block: int) -> Iterator[int]:
        """Return a call of a block and its enclosing calls."""
        while block >= 0:
            yield block
            block = self.calls[block].outer

    def groups(self) -> list[list[int]]:
        """Return executed calls that are equal, where there are more than one."""
        return [each.ran for each in self._alike.values() if len(each.ran) > 1]

    def absorb(self, block: int, by: int) -> None:
        self.absorbed.add(block)
        self.calls[by].others.append(self.calls[block].path)

    @contextmanager
    def watched(self, model: Any) -> Iterator[None]:
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
        if id(module) in self._called or id(module) not in self._kinds or not self._skippable():
            # A module that is called again shares its weights with the first call; one that the
            # forward pass makes, such as a slice of a `Sequential`, is none of the model's.
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
        return self._paths.block

    @contextmanager
    def forgetting(self, block: int) -> Iterator[None]:
        """Free the memory of skipped calls with that of the call that represents them."""
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
        taken = alike.taken = SkippedMemory(second, ran.kept_bytes, ran.rise_bytes)
        ran.taken.append(taken)
        with self._paths.inside(path, number):
            shape, places = ran.outputs
            made = skipped(self._recorder, taken, module, given, places)
            return tree_unflatten(made, shape)

    def _correct(self, alike: Alike) -> None:
        """Correct the kept memory: whether a block keeps its input shows only after it.

        After an executed block, memory changes by one amount until the next call; after a skipped
        one, which keeps nothing, by another. The difference is what was kept.
        """
        gap = self._memory.live_bytes - alike.left_bytes
        if alike.taken is not None and alike.gap_bytes is not None:
            kept = alike.gap_bytes - gap
            alike.taken.bytes += kept
            self._memory.add(kept)
        elif len(alike.ran) == 2:
            alike.gap_bytes = gap

    def _skippable(self) -> bool:
        """Return whether a call may be skipped: not while recomputing or checkpointing."""
        return (
            self._recorder.phase is Phase.FORWARD
            and torch._C._autograd._top_saved_tensors_default_hooks(True) is None
        )

    def add(self, model: Any) -> None:
        """Find modules of more than one layer, with their equal siblings."""
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
        self._last |= {id(each[-1]) for each in siblings.values() if len(each) > 1}

    def _watching(self, kind: type) -> type:
        blocks = self

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            return blocks.called(self, kind, args, kwargs)

        same = {"__call__": call, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
        return type(kind.__name__, (kind,), same)


_SMALLEST = 4
"""Least number of modules in a block."""
Written = tuple[Operation, int]
"""Operation and the call of a block that it belongs to."""


def whole_step(written: Sequence[Written], blocks: Blocks) -> Iterator[Operation]:
    """Return each operation with its count and modules, equal neighbours merged."""
    _absorb(written, blocks)
    labels = {number: _label(blocks, number) for number in range(len(blocks.calls))}
    gone = blocks.absorbed
    kept = (
        _labelled(operation, block, blocks, labels)
        for operation, block in written
        if not any(each in gone for each in blocks.chain(block))
    )
    return joined(kept)


def joined(operations: Iterable[Operation]) -> Iterator[Operation]:
    """Merge equal neighbours into one with a count."""
    last: Operation | None = None
    for each in operations:
        if last is not None and replace(each, count=last.count) == last:
            last = replace(last, count=last.count + each.count)
            continue
        if last is not None:
            yield last
        last = each
    if last is not None:
        yield last


def _labelled(
    operation: Operation, block: int, blocks: Blocks, labels: dict[int, str]
) -> Operation:
    if block < 0:
        return operation
    path = blocks.calls[block].path
    rest = operation.module[len(path) :] if operation.module.startswith(path) else ""
    return replace(
        operation,
        module=labels[block] + rest,
        count=operation.count * blocks.times(block),
    )


def _absorb(written: Sequence[Written], blocks: Blocks) -> None:
    """Merge first and last of equal calls with the second where they did exactly the same."""
    done: dict[int, list[Written]] = {}
    for operation, block in written:
        for each in blocks.chain(block):
            done.setdefault(each, []).append((operation, block))
    for ran in blocks.groups():
        second = ran[1]
        if not blocks.calls[second].others:
            continue
        model = _relative(done.get(second, []), second, blocks)
        for each in (ran[0], *ran[2:]):
            if _relative(done.get(each, []), each, blocks) == model:
                blocks.absorb(each, second)


def _relative(
    written: Sequence[Written], block: int, blocks: Blocks
) -> list[tuple[Operation, int]]:
    """Return the operations of a call with relative paths, for comparison."""
    path = len(blocks.calls[block].path)
    own = blocks.times(block)
    return [
        (replace(each, module=each.module[path:]), blocks.times(inner) // own)
        for each, inner in written
    ]


def _label(blocks: Blocks, number: int) -> str:
    """Return `layers.0-31` for a call that represents many, with labelled parents."""
    call = blocks.calls[number]
    path = call.path
    if call.outer >= 0:
        outer = blocks.calls[call.outer].path
        if path.startswith(f"{outer}."):
            path = _label(blocks, call.outer) + path[len(outer) :]
    if not call.others:
        return path
    parent = path.rpartition(".")[0]
    names = {each.rpartition(".")[2] for each in (call.path, *call.others)}
    if not all(each.isdigit() for each in names):
        return path
    shown = _ranges(sorted(int(each) for each in names))
    return f"{parent}.{shown}" if parent else shown


def _ranges(numbers: Sequence[int]) -> str:
    """Format 0, 1, 2, 5 as `0-2,5`."""
    parts: list[list[int]] = []
    for each in numbers:
        if parts and each == parts[-1][-1] + 1:
            parts[-1].append(each)
        else:
            parts.append([each])
    return ",".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
