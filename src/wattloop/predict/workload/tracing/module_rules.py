"""Modules with a user's cost rule: their inner operations run but are not recorded."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch.utils._pytree import tree_flatten

from wattloop.core.errors import ConfigError
from wattloop.predict.workload.operation import Operation, Phase
from wattloop.predict.workload.rules.call import ModuleCall, dtype_name, tensors_among
from wattloop.predict.workload.rules.registry import module_rule
from wattloop.predict.workload.tracing.recorder import Recorder


@contextmanager
def counted_by_rules(model: Any, recorder: Recorder, precision: str) -> Iterator[None]:
    """Count outermost modules of `model` that have a rule by it within this context."""
    hooks = []
    for path, module in model.named_modules():
        rule = module_rule(module)
        if rule is None or path in recorder.ruled_paths:
            continue
        watcher = _Watcher(path, rule, recorder, precision)
        hooks.append(module.register_forward_hook(watcher.called, with_kwargs=True))
        for name, _ in module.named_modules(prefix=path):
            recorder.ruled_paths[name] = watcher.saw
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

    def saw(self, phase: Phase, block: int) -> None:
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
