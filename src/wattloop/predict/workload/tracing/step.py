"""One step on fake tensors: forward, loss, backward, optimizer."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_flatten

from wattloop.core.errors import ConfigError
from wattloop.predict.workload.operation import Operation, Phase
from wattloop.predict.workload.tracing.autocast import cuda_autocast
from wattloop.predict.workload.tracing.building import faked, module_of, on_fake_weights
from wattloop.predict.workload.tracing.memory import Memory
from wattloop.predict.workload.tracing.optimizing import Optimizing
from wattloop.predict.workload.tracing.paths import Paths
from wattloop.predict.workload.tracing.recorder import Recorder
from wattloop.predict.workload.tracing.request import Request
from wattloop.predict.workload.tracing.scalars import Guesses
from wattloop.predict.workload.tracing.unpacked import samples_unpacked
from wattloop.predict.workload.tracing.whole import whole_operations
from wattloop.predict.workload.workload import Workload
from wattloop.version import __version__

__all__ = ["traced"]

_CUBLAS_BYTES = 32 * 2**20
"""Workspace that torch gives cuBLAS on GPUs since Hopper (8 MiB before)."""


def traced(request: Request) -> Workload:
    """The workload that a request describes."""
    guesses = Guesses(0)
    try:
        return _Step(request, guesses).run()
    except ConfigError:
        if not guesses.guessed:
            raise
    # A number read from a tensor was taken to be 0, and that did not go through.
    return _Step(request, Guesses(1)).run()


class _Step:
    """One attempt to trace a request."""

    def __init__(self, request: Request, guesses: Guesses) -> None:
        self.request = request
        self.guesses = guesses

    def run(self) -> Workload:
        with FakeTensorMode(allow_non_fake_inputs=True), _as_on_cuda():
            module = module_of(self.request.model)
            with on_fake_weights(module), _mode_of(module, self.request.training):
                return self._trace(module)

    def _trace(self, module: Any) -> Workload:
        request = self.request
        inputs = faked(request.inputs)
        targets = faked(request.targets)
        trained = [each for each in module.parameters() if each.requires_grad]
        given = [each for each in tree_flatten((inputs, targets))[0] if _is_tensor(each)]
        held = [*module.parameters(), *module.buffers()]
        optimizing = Optimizing.of(request, trained)
        if request.training and request.accumulate > 1:
            for each in trained:
                each.grad = torch.empty_like(each)
        kept = [each.grad for each in trained if each.grad is not None]
        memory = Memory([*held, *given, *kept])
        paths = Paths(module)
        recorder = Recorder(request.precision, paths, memory, self.guesses)
        activations = self._passes(module, inputs, targets, recorder, memory, paths)
        resident = sum(_bytes(each) for each in (*held, *given, *kept))
        states = optimizing.state_bytes
        gradients = float(sum(_bytes(each) for each in trained)) if request.training else 0.0
        # The optimizer finds parameters, gradients and its states, and may need room of its own.
        updating = (
            resident - sum(_bytes(each) for each in kept) + gradients + optimizing.spare_bytes
        )
        peak = states + max(resident + memory.peak_bytes, updating) + self._workspaces()
        operations = (*recorder.operations, *optimizing.operations)
        return Workload(
            name=request.name or type(module).__name__,
            operations=tuple(_joined(operations)),
            precision=request.precision,
            optimizer=optimizing.name if request.training else "",
            optimizer_style=request.style if optimizing.name and request.training else "",
            batch=_batch(given),
            accumulate=request.accumulate,
            training=request.training,
            parameters=sum(each.numel() for each in trained),
            parameter_bytes=float(sum(_bytes(each) for each in module.parameters())),
            gradient_bytes=gradients,
            optimizer_bytes=states,
            activation_bytes=float(activations),
            peak_bytes=float(peak),
            input_bytes=float(sum(_bytes(each) for each in given)),
            modules=sum(paths.calls.values()),
            notes=tuple(self.guesses.notes),
            origin={
                "wattloop": __version__,
                "torch": torch.__version__,
                "inputs": [[list(each.shape), str(each.dtype)] for each in given],
            },
        )

    def _workspaces(self) -> int:
        """Room that cuBLAS takes for each thread that calls it: forward, and backward."""
        return _CUBLAS_BYTES * (2 if self.request.training else 1)

    def _passes(
        self,
        module: Any,
        inputs: Any,
        targets: Any,
        recorder: Recorder,
        memory: Memory,
        paths: Paths,
    ) -> int:
        """Forward, loss and backward; bytes alive between them."""
        request = self.request
        with self._explained(recorder, module, paths), ExitStack() as stack:
            stack.enter_context(whole_operations())
            stack.enter_context(samples_unpacked())
            stack.enter_context(paths.followed())
            stack.enter_context(recorder)
            stack.enter_context(torch.set_grad_enabled(request.training))
            with _autocast(request.precision):
                output = _called(module, inputs)
                value = _loss(request, output, targets, self.guesses)
            activations = memory.live_bytes
            if request.training:
                del output
                recorder.phase = Phase.BACKWARD
                value.backward()
            return activations

    @contextmanager
    def _explained(self, recorder: Recorder, module: Any, paths: Paths) -> Iterator[None]:
        """Errors of the model are told with the operation and module where they happened."""
        try:
            yield
        except ConfigError:
            raise
        except Exception as problem:
            op, path = recorder.failed or ("", _raised_in(problem, paths))
            where = f"module '{path}'" if path else "the model"
            what = f", operation '{op}'" if op else ""
            text = str(problem).strip().splitlines() or [type(problem).__name__]
            raise ConfigError(
                f"the model does not run on these inputs, in {where}{what}: {text[0]}; check the "
                "shapes and names of the inputs"
            ) from problem


def _called(module: Any, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return module(**inputs)
    if isinstance(inputs, (tuple, list)):
        return module(*inputs)
    return module(inputs)


def _loss(request: Request, output: Any, targets: Any, guesses: Guesses) -> Any:
    """What is differentiated."""
    if request.loss is not None:
        return _asked_loss(request.loss, output, targets)
    own = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if _is_tensor(own):
        return own
    if not request.training:
        return None
    first = _first_float(output)
    if first is None:
        raise ConfigError("the model's output has no floating-point tensor to differentiate")
    guesses.note("no loss was given and the model has none: the mean of its output is taken")
    return first.mean()


def _asked_loss(loss: Any, output: Any, targets: Any) -> Any:
    if callable(loss):
        return loss(output) if targets is None else loss(output, targets)
    scores = _first_float(output)
    if loss == "mse":
        aim = torch.empty_like(scores) if targets is None else targets
        return torch.nn.functional.mse_loss(scores, aim)
    if scores.dim() > 2 and targets is None:
        scores = scores.flatten(0, -2)  # a class for each position, classes last
    if targets is None:
        targets = torch.empty(scores.shape[0], dtype=torch.int64)
    return torch.nn.functional.cross_entropy(scores, targets)


def _first_float(output: Any) -> Any:
    logits = getattr(output, "logits", None)
    for each in (logits, *tree_flatten(output)[0]):
        if _is_tensor(each) and each.is_floating_point():
            return each
    return None


def _autocast(precision: str) -> Any:
    low = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    return nullcontext() if low is None else cuda_autocast(low)


@contextmanager
def _as_on_cuda() -> Iterator[None]:
    """Shortcuts of the CPU that training on CUDA never takes are off."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@contextmanager
def _mode_of(module: Any, training: bool) -> Iterator[None]:
    """The module is in training or evaluation mode in here, then as it was."""
    before = {each: each.training for each in module.modules()}
    if not training:
        module.eval()
    elif not module.training:
        module.train()
    try:
        yield
    finally:
        for each, value in before.items():
            each.training = value


def _raised_in(problem: BaseException, paths: Paths) -> str:
    """The innermost module in the traceback of an error."""
    found, frame = "", problem.__traceback__
    while frame is not None:
        held = frame.tb_frame.f_locals.get("self")
        if isinstance(held, torch.nn.Module):
            found = paths.names.get(id(held), found)
        frame = frame.tb_next
    return found


def _joined(operations: Any) -> Iterator[Operation]:
    """Neighbours that are alike become one with a count."""
    from dataclasses import replace

    last: Operation | None = None
    for each in operations:
        if last is not None and each == last:
            last = replace(last, count=last.count + each.count)
            continue
        if last is not None:
            yield last
        last = each
    if last is not None:
        yield last


def _batch(given: list[Any]) -> int:
    return next((int(each.shape[0]) for each in given if each.dim()), 1)


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)
