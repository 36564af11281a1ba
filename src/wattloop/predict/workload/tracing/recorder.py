"""The mode that sees every operation and writes it down."""

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from wattloop.predict.workload.operation import Operation, Phase
from wattloop.predict.workload.rules.call import Call
from wattloop.predict.workload.rules.registry import operations_of
from wattloop.predict.workload.tracing.memory import Memory
from wattloop.predict.workload.tracing.paths import Paths
from wattloop.predict.workload.tracing.scalars import Guesses

__all__ = ["Recorder"]


class Recorder(TorchDispatchMode):  # type: ignore[misc]  # torch is not typed here
    """Writes down every operation that torch dispatches while it is entered.

    Attributes:
        operations: so far, in order.
        phase: what is being done now; set by the tracer.
        failed: operation and module of the first one that raised.
    """

    def __init__(self, precision: str, paths: Paths, memory: Memory, guesses: Guesses) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self.phase = Phase.FORWARD
        self.failed: tuple[str, str] | None = None
        self._precision = precision
        self._paths = paths
        self._memory = memory
        self._guesses = guesses
        self._names: dict[Any, str] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation on fake tensors and write it down."""
        kwargs = kwargs or {}
        name = self._names.get(func)
        if name is None:
            name = self._names[func] = str(func).rpartition(".")[0]
        if name.startswith("prim."):
            return func(*args, **kwargs)
        path = self._paths.current()
        try:
            result = self._guesses.run(name, path, func, args, kwargs)
        except Exception:
            self.failed = self.failed or (name, path)
            raise
        call = Call(name, func, args, kwargs, result, self.phase, path, self._precision)
        self._memory.saw(call.outputs)
        self.operations += operations_of(call)
        return result
