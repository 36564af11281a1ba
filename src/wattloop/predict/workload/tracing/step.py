"""Trace of one training step on fake tensors: forward, loss, backward, optimizer."""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_flatten

from wattloop.core.errors import ConfigError
from wattloop.predict.workload import costs
from wattloop.predict.workload.costs.call import dtype_name
from wattloop.predict.workload.costs.optimizer import rule_of
from wattloop.predict.workload.fusion import StepGraph, compiled_step
from wattloop.predict.workload.operation import Operation, Phase
from wattloop.predict.workload.trace import TraceRequest
from wattloop.predict.workload.tracing.autocast import (
    LOW_TYPES,
    autocasting,
    cuda_autocast_is_ours,
    cuda_lists,
)
from wattloop.predict.workload.tracing.block_reuse import Blocks, joined, whole_step
from wattloop.predict.workload.tracing.constant_tracking import Guesses
from wattloop.predict.workload.tracing.fake_weights import (
    StandIns,
    faked,
    module_of,
    on_fake_weights,
)
from wattloop.predict.workload.tracing.fused_ops import whole_operations
from wattloop.predict.workload.tracing.recorder import LiveMemory, Paths, Recorder, counted_by_rules
from wattloop.predict.workload.tracing.torch_state import (
    OneDevice,
    as_on_cuda,
    in_mode,
    masks_as_compiled,
    samples_unpacked,
)
from wattloop.predict.workload.workload import Workload, accumulation
from wattloop.version import __version__


def loss_of(request: TraceRequest, output: Any, targets: Any, guesses: Guesses) -> Any:
    """Return a number to differentiate; None where nothing is."""
    if request.loss is not None:
        return _asked_loss(request.loss, output, targets)
    own = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if isinstance(own, torch.Tensor):
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
        if isinstance(each, torch.Tensor) and each.is_floating_point():
            return each
    return None


@dataclass(frozen=True)
class Optimizing:
    """Operations and memory of an optimizer.

    Attributes:
        name: as in `costs.optimizers`; empty when there is none.
        operations: of one step, the sums of accumulated gradients included.
        state_bytes: kept between steps.
        spare_bytes: needed while the step runs.
    """

    name: str
    operations: tuple[Operation, ...]
    state_bytes: float
    spare_bytes: float

    @classmethod
    def of(cls, request: TraceRequest, trained: Sequence[Any]) -> "Optimizing":
        if not request.training or not request.optimizer:
            return cls("", (), 0.0, 0.0)
        name = (
            request.optimizer
            if isinstance(request.optimizer, str)
            else name_of(_made_optimizer(request.optimizer, trained))
        )
        rule = rule_of(name)
        by_dtype: dict[str, list[int]] = {}
        for each in trained:
            by_dtype.setdefault(dtype_name(each.dtype), []).append(each.numel())
        made: list[Operation] = []
        if request.precision == "fp16":
            made += _unscaling(name, by_dtype)
        for dtype, sizes in by_dtype.items():
            made += costs.optimizer_step(name, sizes, style=request.style, dtype=dtype)
        whole = float(sum(each.numel() * each.element_size() for each in trained))
        spare = rule.spare * whole if request.style == "foreach" else 0.0
        return cls(name, tuple(made), rule.states * whole, spare)


def _made_optimizer(optimizer: Any, trained: Sequence[Any]) -> Any:
    return optimizer if hasattr(optimizer, "param_groups") else optimizer(list(trained))


def _unscaling(name: str, by_dtype: dict[str, list[int]]) -> list[Operation]:
    """Return the operations of a gradient scaler under fp16: divide and search for infinities."""
    made = [
        costs.foreach(
            name,
            len(sizes),
            sum(sizes),
            fused=False,
            dtype=dtype,
            sizes=sizes,
            lists=1,
            op="aten._amp_foreach_non_finite_check_and_unscale_",
        )
        for dtype, sizes in by_dtype.items()
    ]
    update = costs.elementwise(1, 3, 1, "fp32", op="aten._amp_update_scale_", phase=Phase.OPTIMIZER)
    return [*made, update]


def name_of(optimizer: Any) -> str:
    kind = type(optimizer).__name__.lower()
    group = optimizer.param_groups[0]
    decays = bool(group.get("weight_decay"))
    if kind not in {"adamw", "adam", "sgd", "rmsprop"}:
        raise ConfigError(
            f"optimizer {type(optimizer).__name__} has no rule; use AdamW, Adam, SGD or RMSprop"
        )
    for option in ("amsgrad", "centered", "nesterov", "maximize"):
        if group.get(option):
            raise ConfigError(f"optimizer {type(optimizer).__name__}: {option} has no rule yet")
    if kind == "rmsprop" and group.get("momentum"):
        raise ConfigError("optimizer RMSprop: momentum has no rule yet")
    name = kind
    if kind == "sgd" and group.get("momentum"):
        name += "+momentum"
    if decays and kind != "adamw":
        name += "+decay"
    return name


_ONE_AT_A_TIME = threading.Lock()
_CUBLAS_BYTES = 32 * 2**20
"""Workspace that torch gives cuBLAS on GPUs since Hopper (8 MiB before)."""


def traced(request: TraceRequest) -> Workload:
    """Trace a request; not thread-safe, because it changes torch's dispatcher."""
    with _ONE_AT_A_TIME:
        try:
            return _guessing(request)
        except NotWhenSkipping:
            # Skipped blocks do not set attributes that the model may read afterwards.
            return _guessing(replace(request, merge=False))


def _guessing(request: TraceRequest) -> Workload:
    guesses = Guesses(0)
    try:
        return _once(request, guesses)
    except ConfigError:
        if not guesses.guessed:
            raise
    # A number read from a tensor was assumed to be 0, and that failed.
    return _once(request, Guesses(1))


def _once(request: TraceRequest, guesses: Guesses) -> Workload:
    if request.step is None:
        return _Step(request, guesses).run()
    from wattloop.predict.workload.tracing.user_step import traced_step

    return traced_step(request, guesses)


class NotWhenSkipping(ConfigError):
    """Error after blocks were skipped, which may be the cause."""


@dataclass(frozen=True)
class RecordedStep:
    """Recording of one step, from which its workload is made.

    Attributes:
        recorder, blocks: what was recorded.
        held: parameters and buffers.
        given: inputs of one pass.
        kept: gradients of earlier passes.
        trained: parameters that require a gradient.
        updated: those that have one.
        activation_bytes: alive between forward and backward.
    """

    recorder: Recorder
    blocks: Blocks
    held: Sequence[Any]
    given: Sequence[Any]
    kept: Sequence[Any]
    trained: Sequence[Any]
    updated: Sequence[Any]
    activation_bytes: float

    def workload(self, request: TraceRequest, optimizing: Optimizing) -> Workload:
        recorder, blocks = self.recorder, self.blocks
        sizes = _sizes(self.updated)
        modules = sum(calls * blocks.times(block) for block, calls in recorder.paths.calls.items())
        resident = sum(_bytes(each) for each in (*self.held, *self.given, *self.kept))
        states = optimizing.state_bytes
        gradients = float(sum(_bytes(each) for each in self.updated))
        # Memory during the optimizer step: parameters, gradients, states, and temporary tensors.
        updating = (
            resident - sum(_bytes(each) for each in self.kept) + gradients + optimizing.spare_bytes
        )
        activations = self.activation_bytes
        rising = float(recorder.peak_bytes())
        if request.accumulate > 1 and not self.kept:
            rising = max(rising, activations + gradients)  # later passes begin with gradients
        made = whole_step(recorder.operations, blocks)
        if recorder.graph is not None:
            compiled = compiled_step(recorder.graph)
            made = joined(compiled.operations)
            activations, rising, modules = compiled.saved_bytes, compiled.peak_bytes, 0
        # Workspace of cuBLAS for each calling thread: forward, and backward.
        workspaces = _CUBLAS_BYTES * (2 if request.training else 1)
        peak = states + max(resident + rising, updating) + workspaces
        operations = (
            *made,
            *joined(optimizing.operations),
            *(accumulation(sizes, request.accumulate) if request.training else ()),
        )
        return Workload(
            name=request.name,
            operations=operations,
            precision=request.precision,
            optimizer=optimizing.name if request.training else "",
            optimizer_style=request.style if optimizing.name and request.training else "",
            batch=request.batch or _batch(self.given),
            accumulate=request.accumulate,
            training=request.training,
            parameters=sum(each.numel() for each in self.trained),
            parameter_bytes=float(
                sum(_bytes(each) for each in self.held if isinstance(each, torch.nn.Parameter))
            ),
            gradient_bytes=gradients,
            optimizer_bytes=states,
            activation_bytes=activations,
            peak_bytes=float(peak),
            input_bytes=float(sum(_bytes(each) for each in self.given)),
            compile_mode=request.compile,
            modules=modules,
            notes=tuple(recorder.guesses.notes),
            origin={
                "wattloop": __version__,
                "torch": torch.__version__,
                "gradient_sizes": sizes,
                "inputs": [[list(each.shape), str(each.dtype)] for each in self.given],
            },
        )


class _Step:
    """One attempt to trace a request."""

    def __init__(self, request: TraceRequest, guesses: Guesses) -> None:
        self.request = request
        self.guesses = guesses

    def run(self) -> Workload:
        with FakeTensorMode(allow_non_fake_inputs=True), OneDevice(), as_on_cuda():
            module = module_of(self.request.model)
            with on_fake_weights(module), in_mode(module, self.request.training):
                return self._trace(module)

    def _trace(self, module: Any) -> Workload:
        request = self.request
        inputs = faked(request.inputs)
        targets = faked(request.targets)
        trained = [each for each in module.parameters() if each.requires_grad]
        given = [each for each in tree_flatten((inputs, targets))[0] if _is_tensor(each)]
        held = [*module.parameters(), *module.buffers()]
        if request.training and request.accumulate > 1:
            for each in trained:
                each.grad = torch.empty_like(each)
        kept = [each.grad for each in trained if each.grad is not None]
        memory = LiveMemory([*held, *given, *kept])
        paths = Paths(module)
        recorder = Recorder(request.precision, paths, memory, self.guesses)
        # Fusion follows tensors from block to block, so that none is skipped.
        merge = request.merge and not request.compile
        blocks = Blocks(module if merge else torch.nn.Identity(), recorder)
        recorder.graph = StepGraph() if request.compile else None
        activations = float(self._passes(module, inputs, targets, recorder, blocks))
        # An optimizer skips parameters without a gradient.
        updated = [each for each in trained if each.grad is not None]
        recorded = RecordedStep(recorder, blocks, held, given, kept, trained, updated, activations)
        named = replace(request, name=request.name or type(module).__name__)
        return recorded.workload(named, Optimizing.of(request, updated))

    def _passes(
        self,
        module: Any,
        inputs: Any,
        targets: Any,
        recorder: Recorder,
        blocks: Blocks,
    ) -> int:
        """Run forward, loss and backward; return the bytes alive between them."""
        request = self.request
        with self._explained(recorder), ExitStack() as stack:
            compiled = bool(request.compile)
            stack.enter_context(stack.enter_context(StandIns()).in_backward())
            stack.enter_context(whole_operations(self.guesses.note, compiled=compiled))
            if compiled:
                stack.enter_context(masks_as_compiled())
            stack.enter_context(samples_unpacked())
            stack.enter_context(recorder.paths.followed())
            stack.enter_context(blocks.watched(module))
            stack.enter_context(counted_by_rules(module, recorder, request.precision))
            stack.enter_context(recorder)
            stack.enter_context(torch.set_grad_enabled(request.training))
            stack.enter_context(cuda_autocast_is_ours())
            weights = stack.enter_context(cuda_lists(blocks.here))
            with autocasting(LOW_TYPES.get(request.precision), weights, blocks.forgetting):
                output = _called(module, inputs)
                value = loss_of(request, output, targets, self.guesses)
            activations = recorder.memory.live_bytes
            if request.training:
                if not value.requires_grad:
                    raise ConfigError(
                        "no trained parameter reaches the loss, so no step can be predicted; "
                        "for the forward pass alone trace with training=False"
                    )
                del output
                recorder.phase = Phase.BACKWARD
                recorder.paths.backward = True
                value.backward()
            return activations

    @contextmanager
    def _explained(self, recorder: Recorder) -> Iterator[None]:
        """Translate errors of the model, with operation and module."""
        try:
            yield
        except ConfigError:
            raise
        except Exception as problem:
            op, path = recorder.failed or ("", _raised_in(problem, recorder.paths))
            where = f"module '{path}'" if path else "the model"
            what = f", operation '{op}'" if op else ""
            text = str(problem).strip().splitlines() or [type(problem).__name__]
            kind = NotWhenSkipping if recorder.skipped else ConfigError
            raise kind(
                f"the model does not run on these inputs, in {where}{what}: {text[0]}; check the "
                "shapes and names of the inputs"
            ) from problem


def _called(module: Any, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return module(**inputs)
    if isinstance(inputs, (tuple, list)):
        return module(*inputs)
    return module(inputs)


def _raised_in(problem: BaseException, paths: Paths) -> str:
    """Return the innermost module in the traceback of an error."""
    found, frame = "", problem.__traceback__
    while frame is not None:
        held = frame.tb_frame.f_locals.get("self")
        if isinstance(held, torch.nn.Module):
            found = paths.names.get(id(held), found)
        frame = frame.tb_next
    return found


def _sizes(trained: Sequence[Any]) -> dict[str, list[list[int]]]:
    """Return for each dtype the sizes of parameters and their counts."""
    sizes: dict[str, Counter[int]] = {}
    for each in trained:
        sizes.setdefault(dtype_name(each.dtype), Counter())[each.numel()] += 1
    return {dtype: [list(each) for each in sorted(sizes[dtype].items())] for dtype in sizes}


def _batch(given: Sequence[Any]) -> int:
    return next((int(each.shape[0]) for each in given if each.dim()), 1)


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)
