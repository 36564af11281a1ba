"""Dispatch mode that records every operation, its module and the memory of live storages."""

import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from wattloop.core.errors import ConfigError
from wattloop.predict.workload.costs.call import Call, ModuleCall, dtype_name, tensors_among
from wattloop.predict.workload.costs.convolution import workspace_bytes
from wattloop.predict.workload.costs.registry import module_rule, operations_of
from wattloop.predict.workload.fusion import StepGraph
from wattloop.predict.workload.operation import Operation, Phase
from wattloop.predict.workload.tracing.constant_tracking import Guesses

# Module path of each operation, forward and backward.
#
# Forward, it is the innermost module being called. Backward, autograd tells which node it
# evaluates; nodes are numbered in the order in which the forward pass made them, and the numbers
# at which modules were entered and left are kept.

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
        in_model: whether the operation last asked for belongs to the model, not to code around it.
        accumulating: whether the operation last asked for adds to a parameter's gradient.
        backward: set by the tracer; modules called from then on are computed again.
    """

    def __init__(self, model: Any = None) -> None:
        self.names: dict[int, str] = {}
        self.calls: dict[int, int] = {}
        self.block = -1
        self.backward = False
        self.accumulating = False
        self.in_model = False
        self._owners: dict[int, str] = {}
        self._blocks: dict[str, int] = {}
        self._stack: list[str] = []
        self._numbers: list[int] = []
        self._entered: list[Spot] = []
        self._entered_inside: list[bool] = []
        if model is not None:
            self.add(model)

    def add(self, model: Any, prefix: str = "") -> None:
        """Name the modules of a model, except those that have a name."""
        for name, each in model.named_modules(prefix=prefix):
            self.names.setdefault(id(each), name)
        for name, parameter in model.named_parameters(prefix=prefix):
            self._owners.setdefault(id(parameter), name.rpartition(".")[0])

    @property
    def inside_module(self) -> bool:
        return bool(self._stack)

    @property
    def recomputing(self) -> bool:
        return self.backward and bool(self._stack)

    @contextmanager
    def followed(self) -> Iterator[None]:
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
        self.accumulating = False
        self.in_model = bool(self._stack)
        if self._stack:
            return self._here()
        node = torch._C._current_autograd_node()
        if node is None:
            return OUTSIDE
        number = node._sequence_nr()
        if number >= _ACCUMULATES:
            self.accumulating = self.in_model = True
            path = self._owners.get(id(getattr(node, "variable", None)), "")
            return Spot(path, self._block_of(path))
        at = bisect_right(self._numbers, number) - 1
        self.in_model = at >= 0 and self._entered_inside[at]
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
            self._entered_inside[-1] = bool(self._stack)
            return
        self._numbers.append(number)
        self._entered.append(spot)
        self._entered_inside.append(bool(self._stack))


class LiveMemory:
    """Bytes of live storages, and their maximum.

    `resident` storages (parameters, buffers, inputs) are known from the start and not counted.
    """

    def __init__(self, resident: Sequence[Any] = ()) -> None:
        self.live_bytes = 0
        self.peak_bytes = 0
        self._alive: dict[int, weakref.ref[Any]] = {}
        self._resident: list[Any] = []
        self._known: set[int] = set()
        self.add_resident(resident)

    def add_resident(self, tensors: Sequence[Any]) -> None:
        # References, so that no later storage gets the same identity.
        storages = [each.untyped_storage() for each in tensors]
        self._resident += storages
        self._known.update(each._cdata for each in storages)

    def add_tensors(self, tensors: Sequence[Any]) -> None:
        """Record tensors that an operation made, or their views."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key in self._known:
                continue
            size = storage.nbytes()
            self._known.add(key)
            self.add(size)
            self._alive[key] = weakref.ref(storage, self._forget(key, size))

    def add(self, size: int) -> None:
        self.live_bytes += size
        self.peak_bytes = max(self.peak_bytes, self.live_bytes)

    def remove(self, size: int) -> None:
        self.live_bytes -= size

    def _forget(self, key: int, size: int) -> Any:
        def gone(_: Any) -> None:
            self._known.discard(key)
            self._alive.pop(key, None)
            self.remove(size)

        return gone


class Recorder(TorchDispatchMode):  # type: ignore[misc]  # torch is not typed here
    """Recorder of every operation that torch dispatches within this mode.

    Attributes:
        operations: so far, in order, each with the call of a block that it belongs to.
        graph: where calls are recorded with their tensors, for a compiled step; set by the tracer.
        phase: what is being done now; set by the tracer.
        failed: operation and module of the first one that raised.
        outer: call of a block -> the one it ran inside of; kept by `blocks`.
        skipped, skipped_paths: calls of blocks, and modules in them, that are not written down.
        ruled_paths: modules that a rule of a user counts -> what to tell of their operations.
        rises: call of a block -> how far memory rose above its start in its backward pass.
        skipped_levels: call of a block -> memory when the backward of those it stands for began.
    """

    def __init__(self, precision: str, paths: Paths, memory: LiveMemory, guesses: Guesses) -> None:
        super().__init__()
        self.operations: list[tuple[Operation, int]] = []
        self.graph: StepGraph | None = None
        self.phase = Phase.FORWARD
        self.failed: tuple[str, str] | None = None
        self.paths = paths
        self.memory = memory
        self.outer: list[int] = []
        self.skipped: set[int] = set()
        self.skipped_paths: set[str] = set()
        self.ruled_paths: dict[str, Callable[[Phase, int], None]] = {}
        self.rises: dict[int, list[int]] = {}
        self.skipped_levels: dict[int, list[int]] = {}
        self._precision = precision
        self.guesses = guesses
        self._names: dict[Any, str] = {}
        self._pauses = 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Run operations within this context without recording them."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def pause(self) -> None:
        self._pauses += 1

    def resume(self) -> None:
        self._pauses -= 1

    def peak_bytes(self) -> int:
        """Return the peak memory, with the backward passes of skipped calls."""
        peak = self.memory.peak_bytes
        for block, levels in self.skipped_levels.items():
            start, top = self.rises.get(block, (0, 0))
            peak = max(peak, max(levels) + top - start)
        return peak

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # In backward, modes for functions of torch would see each look at a tensor below.
        with torch._C.DisableTorchFunction():
            return self._dispatched(func, args, kwargs or {})

    def _dispatched(self, func: Any, args: Any, kwargs: Any) -> Any:
        name = self._names.get(func)
        if name is None:
            name = self._names[func] = str(func).rpartition(".")[0]
        if name.startswith(("prim.", "profiler.")):
            return func(*args, **kwargs)
        if self._pauses:
            self.guesses.outside = not self.paths.inside_module
            return self.guesses.run(name, "", func, args, kwargs)
        path, block = self.paths.current()
        self.guesses.outside = not self.paths.in_model
        start = self.memory.live_bytes
        try:
            result = self.guesses.run(name, path, func, args, kwargs)
        except Exception:  # whatever it is goes on to the caller, which names operation and module
            self.failed = self.failed or (name, path)
            raise
        call = Call(name, func, args, kwargs, result, self.phase, path, self._precision)
        self.memory.add_tensors(call.outputs)
        taken = workspace_bytes(call)
        self.memory.add(taken)
        if self.phase is Phase.BACKWARD and block >= 0:
            self._rose(block, start)
        self.memory.remove(taken)
        if path in self.ruled_paths:
            self.ruled_paths[path](self.phase, block)
        elif self._written(name, path, block):
            made = operations_of(call)
            self.operations += [(each, block) for each in made]
            if self.graph is not None:
                self.graph.add(call, made, inside=self.paths.in_model)
        return result

    def _written(self, name: str, path: str, block: int) -> bool:
        # Sums over passes are counted once per step (`workload.accumulation`).
        sums = self.paths.accumulating and name == "aten.add_"
        return not sums and block not in self.skipped and path not in self.skipped_paths

    def _rose(self, block: int, start: int) -> None:
        while block >= 0:
            rise = self.rises.setdefault(block, [start, start])
            rise[1] = max(rise[1], self.memory.live_bytes)
            block = self.outer[block]


@contextmanager
def counted_by_rules(model: Any, recorder: Recorder, precision: str) -> Iterator[None]:
    """Count outermost modules of `model` that have a rule by it within this context."""
    hooks = []
    for module in model.modules():
        rule, path = module_rule(module), recorder.paths.names[id(module)]
        if rule is None or path in recorder.ruled_paths:
            continue
        watcher = _Watcher(path, rule, recorder, precision)
        hooks.append(module.register_forward_hook(watcher.called, with_kwargs=True))
        for name, _ in module.named_modules(prefix=path):
            recorder.ruled_paths[name] = watcher.count_backward
    try:
        yield
    finally:
        for each in hooks:
            each.remove()


class _Watcher:
    """Hook of one module that calls its rule, forward and backward."""

    def __init__(
        self, path: str, rule: Callable[[ModuleCall], Any], recorder: Recorder, precision: str
    ) -> None:
        self._path = path
        self._rule = rule
        self._recorder = recorder
        self._precision = precision
        self._waiting: list[ModuleCall] = []

    def called(self, module: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Record a forward call of the module, possibly in the backward pass."""
        given = tensors_among(tree_flatten((args, kwargs))[0])
        made = tensors_among(tree_flatten(result)[0])
        floats = [each for each in (*given, *made) if each.dtype.is_floating_point]
        call = ModuleCall(
            module=module,
            path=self._path,
            phase=Phase.FORWARD,
            inputs=tuple(tuple(each.shape) for each in given),
            outputs=tuple(tuple(each.shape) for each in made),
            dtype=dtype_name(floats[0].dtype) if floats else "fp32",
            precision=self._precision,
        )
        recorder = self._recorder
        self._write(call, recorder.phase, recorder.paths.current().block)
        if recorder.phase is Phase.FORWARD:
            self._waiting.append(replace(call, phase=Phase.BACKWARD))

    def count_backward(self, phase: Phase, block: int) -> None:
        """Record an operation of the module; the first of the backward pass represents all."""
        if phase is Phase.BACKWARD and not self._recorder.paths.recomputing:
            while self._waiting:
                self._write(self._waiting.pop(), phase, block)

    def _write(self, call: ModuleCall, phase: Phase, block: int) -> None:
        made = self._rule(call)
        operations = (made,) if isinstance(made, Operation) else made
        if not all(isinstance(each, Operation) for each in operations):
            raise ConfigError(
                f"rule of module '{self._path}' ({type(call.module).__name__}): expected "
                f"operations, such as wattloop.predict.workload.costs makes"
            )
        if block not in self._recorder.skipped:
            self._recorder.operations += [
                (replace(each, phase=phase, module=self._path), block) for each in operations
            ]
