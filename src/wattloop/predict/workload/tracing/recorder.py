"""Dispatch mode that records every operation and the memory of live storages."""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from wattloop.predict.workload.operation import Operation, Phase
from wattloop.predict.workload.rules.call import Call
from wattloop.predict.workload.rules.convolution import workspace_bytes
from wattloop.predict.workload.rules.registry import operations_of
from wattloop.predict.workload.tracing.constant_tracking import Guesses
from wattloop.predict.workload.tracing.module_paths import Paths


class Memory:
    """Bytes of live storages, and their maximum.

    `resident` storages (parameters, buffers, inputs) are known from the start and not counted.
    """

    def __init__(self, resident: Sequence[Any]) -> None:
        self.live_bytes = 0
        self.peak_bytes = 0
        self._alive: dict[int, weakref.ref[Any]] = {}
        # References, so that no later storage gets the same identity.
        self._resident = [each.untyped_storage() for each in resident]
        self._known = {each._cdata for each in self._resident}

    def saw(self, tensors: Sequence[Any]) -> None:
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
        phase: what is being done now; set by the tracer.
        failed: operation and module of the first one that raised.
        outer: call of a block -> the one it ran inside of; kept by `blocks`.
        skipped, skipped_paths: calls of blocks, and modules in them, that are not written down.
        ruled_paths: modules that a rule of a user counts -> what to tell of their operations.
        rises: call of a block -> how far memory rose above its start in its backward pass.
        skipped_levels: call of a block -> memory when the backward of those it stands for began.
    """

    def __init__(self, precision: str, paths: Paths, memory: Memory, guesses: Guesses) -> None:
        super().__init__()
        self.operations: list[tuple[Operation, int]] = []
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
        self._guesses = guesses
        self._names: dict[Any, str] = {}
        self._pauses = 0

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Run operations within this context without recording them."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1

    def peak_bytes(self) -> int:
        """Return the peak memory, with the backward passes of skipped calls."""
        peak = self.memory.peak_bytes
        for block, levels in self.skipped_levels.items():
            start, top = self.rises.get(block, (0, 0))
            peak = max(peak, max(levels) + top - start)
        return peak

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation on fake tensors and record it."""
        kwargs = kwargs or {}
        if self._pauses:
            return func(*args, **kwargs)
        name = self._names.get(func)
        if name is None:
            name = self._names[func] = str(func).rpartition(".")[0]
        if name.startswith(("prim.", "profiler.")):
            return func(*args, **kwargs)
        path, block = self.paths.current()
        start = self.memory.live_bytes
        try:
            result = self._guesses.run(name, path, func, args, kwargs)
        except Exception:
            self.failed = self.failed or (name, path)
            raise
        call = Call(name, func, args, kwargs, result, self.phase, path, self._precision)
        self.memory.saw(call.outputs)
        taken = workspace_bytes(call)
        self.memory.add(taken)
        if self.phase is Phase.BACKWARD and block >= 0:
            self._rose(block, start)
        self.memory.remove(taken)
        if path in self.ruled_paths:
            self.ruled_paths[path](self.phase, block)
        elif self._written(name, path, block):
            self.operations += [(each, block) for each in operations_of(call)]
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
