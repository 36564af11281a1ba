"""Trace of a training step as its author wrote it: a function, or a program that runs.

The code runs as it is, but on fake tensors: from its first call of a model until its optimizer has
stepped. What it does among tensors of the CPU outside of modules (making a batch) runs for real.
Nothing of the user's changes: fake tensors stand in for parameters, buffers, gradients and states.
"""

import functools
import random
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from wattloop.core.errors import ConfigError
from wattloop.predict.workload.costs.call import dtype_name
from wattloop.predict.workload.fusion import MODES, StepGraph
from wattloop.predict.workload.operation import Phase
from wattloop.predict.workload.trace import TraceRequest
from wattloop.predict.workload.tracing.autocast import LOW_TYPES, cuda_autocast_is_ours, cuda_lists
from wattloop.predict.workload.tracing.block_reuse import Blocks
from wattloop.predict.workload.tracing.constant_tracking import Guesses
from wattloop.predict.workload.tracing.fake_weights import StandIns, faked, on_fake_weights
from wattloop.predict.workload.tracing.fused_ops import whole_operations
from wattloop.predict.workload.tracing.recorder import LiveMemory, Paths, Recorder, counted_by_rules
from wattloop.predict.workload.tracing.step import (
    NotWhenSkipping,
    Optimizing,
    RecordedStep,
    name_of,
)
from wattloop.predict.workload.tracing.torch_state import (
    as_on_cuda,
    masks_as_compiled,
    samples_unpacked,
)
from wattloop.predict.workload.workload import Workload


class StepEnd(BaseException):
    """End of the traced step, raised in the user's code; not an `Exception`, which it may catch."""


def traced_step(request: TraceRequest, guesses: Guesses) -> Workload:
    """Trace the request's `step`, and leave everything as it was."""
    assert request.step is not None
    optimizers = [each for each in _listed(request.optimizer) if hasattr(each, "param_groups")]
    capture = StepCapture(request, guesses)
    capture.expected = optimizers
    with _unchanged(optimizers), _batches_returned(), capture.installed():
        capture.begin()
        if isinstance(request.model, torch.nn.Module):
            capture.adopt(unwrapped(request.model)[0])
        capture.record()
        with capture.explained(), suppress(StepEnd):
            capture.end_of_function(request.step())
        return capture.workload()


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


@contextmanager
def _unchanged(optimizers: Sequence[Any]) -> Iterator[None]:
    """Restore random numbers and attributes of optimizers after this context."""
    numpy: Any = sys.modules.get("numpy")
    generators = (random.getstate(), torch.get_rng_state())
    numbers = None if numpy is None else numpy.random.get_state()
    kept = [
        (each, dict(vars(each)), [(group, dict(group)) for group in each.param_groups])
        for each in optimizers
    ]
    try:
        yield
    finally:
        random.setstate(generators[0])
        torch.set_rng_state(generators[1])
        if numbers is not None:
            numpy.random.set_state(numbers)
        for each, attributes, groups in kept:
            vars(each).clear()
            vars(each).update(attributes)
            for group, content in groups:
                group.clear()
                group.update(content)


@contextmanager
def _batches_returned() -> Iterator[None]:
    """Let iterators of data loaders yield batches that were taken within this context again."""
    kind: Any = torch.utils.data.dataloader._BaseDataLoaderIter
    taken: dict[int, tuple[Any, list[Any]]] = {}

    def take(original: Any, iterator: Any) -> Any:
        batch = original(iterator)
        taken.setdefault(id(iterator), (iterator, []))[1].append(batch)
        return batch

    with _replaced(kind, "__next__", take):
        yield
    for iterator, batches in taken.values():
        iterator._num_yielded -= len(batches)
        iterator._next_data = functools.partial(_next_data, iterator, batches)


def _next_data(iterator: Any, batches: list[Any]) -> Any:
    if batches:
        return batches.pop(0)
    del iterator._next_data  # the method of its class, from now on
    return iterator._next_data()


@dataclass
class _Pass:
    """Outermost calls of modules in one pass.

    Attributes:
        calls: module, shapes of its inputs, and how to make its outputs again.
        at: position in `calls` while the pass is repeated.
    """

    calls: list[tuple[int, Any, Any]]
    at: int = 0


class StepCapture:
    """Recorder of one step of a program, from its first call of a model to its optimizer's step.

    Attributes:
        expected: optimizers of which each steps once in a step; empty where they are not known.
        on_end: called when the step is over; ends the program, or raises `StepEnd`.
        is_waiting: whether calls of modules still run for real; a program makes its model first.
        on_real_backward: called after a backward pass that ran for real, before the trace.
        by_hand: whether the program updates weights without an optimizer of torch; a step then ends
            where the next one calls the model.
        passes: micro-batches so far.
    """

    def __init__(self, request: TraceRequest, guesses: Guesses) -> None:
        self.expected: list[Any] = []
        self.on_end: Callable[[], None] = _raise_end
        self.is_waiting: Callable[[], bool] = lambda: False
        self.on_real_backward: Callable[[], None] = lambda: None
        self.by_hand = False
        self.passes = 0
        guesses.is_user_step = True
        self._request = request
        self._known: dict[int, Any] = {}
        self._active = False
        self._recording = False
        self._depth = 0
        self._adopted: dict[int, Any] = {}
        self._stack = ExitStack()
        self._paths = Paths()
        self._memory = LiveMemory()
        self._recorder = Recorder(request.precision, self._paths, self._memory, guesses)
        self._blocks = Blocks(torch.nn.Identity(), self._recorder)
        self._mode = StandIns(self._known, lambda: not self._depth and not self._paths.backward)
        self._weights: Any = None
        self._given: list[Any] = []
        self._pass = _Pass([])
        self._repeats = False
        self._one_model = True
        self._activations = 0.0
        self._tail = 0
        """Operations up to the end of the last backward pass."""
        self._compile = request.compile
        self._low: Any = None
        self._scaled = False
        self._graph: StepGraph | None = None
        self._outputs: dict[Any, Any] = {}
        self._clones: set[int] = set()
        self._stepped: dict[int, tuple[Any, Optimizing, str]] = {}
        self._updated: dict[int, Any] = {}

    # Life of a capture: installed, begun (tensors are fake), recording, over.

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Watch modules, backward passes and optimizers within this context."""
        with ExitStack() as stack, self._stack:
            stack.enter_context(as_on_cuda())
            stack.enter_context(cuda_autocast_is_ours())
            stack.enter_context(self._autocast_followed())
            stack.enter_context(_compiled_as_eager())
            stack.enter_context(_lists_on_fake())
            for owner, name, replacement in (
                (torch.nn.Module, "__call__", self._call),
                (torch.autograd, "_engine_run_backward", self._backward),
                *_scaler(self),
                *_schedulers(),
            ):
                stack.enter_context(_replaced(owner, name, replacement))
            before = register_optimizer_step_pre_hook(self._before_step)
            after = register_optimizer_step_post_hook(self._after_step)
            stack.callback(before.remove)
            stack.callback(after.remove)
            yield

    def begin(self) -> None:
        """Make tensors fake from now on."""
        if self._active:
            return
        self._active = True
        if torch.is_autocast_enabled("cpu"):  # around the call that begins
            self._low = torch.get_autocast_dtype("cpu")
        enter = self._stack.enter_context
        enter(FakeTensorMode(allow_non_fake_inputs=True))
        enter(self._mode)
        enter(whole_operations(self._recorder.guesses.note, compiled=bool(self._compile)))
        if self._compile:
            enter(masks_as_compiled())
        enter(samples_unpacked())
        enter(self._paths.followed())
        self._recorder.pause()
        enter(self._recorder)
        self._weights = enter(cuda_lists(self._blocks.here))

    def record(self) -> None:
        if not self._recording:
            self._recording = True
            self._recorder.resume()

    def adopt(self, module: Any) -> None:
        """Give a module fake weights, and its operations a name."""
        if id(module) in self._adopted:
            return
        _refuse_sharded(module)
        first = not self._adopted
        self._adopted[id(module)] = module
        merge = self._request.merge and not self._compile
        with torch.inference_mode(False), torch.enable_grad(), self._recorder.paused():
            self._stack.enter_context(on_fake_weights(module, self._known))
            if self._request.accumulate > 1:
                for each in module.parameters():
                    if each.requires_grad:
                        each.grad = torch.empty_like(each)
        self._memory.add_resident([*module.parameters(), *module.buffers()])
        self._memory.add_resident(
            [each.grad for each in module.parameters() if each.grad is not None]
        )
        self._paths.add(module, "" if first else type(module).__name__.lower())
        self._stack.enter_context(counted_by_rules(module, self._recorder, self._request.precision))
        if merge:
            self._blocks.add(module)
            self._stack.enter_context(self._blocks.watched(module))

    def end_of_function(self, returned: Any) -> None:
        """Take a step that returned: a loss that was not differentiated is, here."""
        loss = returned
        if isinstance(returned, dict):
            loss = returned.get("loss")
        elif isinstance(returned, (tuple, list)) and returned:
            loss = returned[0]
        if not self.passes and isinstance(loss, torch.Tensor) and loss.requires_grad:
            note = "step: it returned a loss without a backward pass, which is added"
            self._recorder.guesses.note(note)
            torch.autograd.backward(loss if loss.dim() == 0 else loss.mean())

    # Hooks.

    def _call(self, original: Any, module: Any, *args: Any, **kwargs: Any) -> Any:
        """Stand in for `Module.__call__`."""
        inside = self._depth or self._paths.backward
        if inside or self.is_waiting() or not _has_parameters(module):
            return original(module, *args, **kwargs)
        inner, mode = unwrapped(module)
        if mode and not self._compile:
            self._compile = mode
            self._recorder.guesses.note(f"compile: {mode}, as the step's model")
        self.begin()
        self.adopt(inner)
        args, kwargs = tree_map(self._given_one, (args, kwargs))
        trains = torch.is_grad_enabled() and any(each.requires_grad for each in inner.parameters())
        if not trains and not self._recording and self._is_trained(inner):
            return self._evaluated(original, inner, args, kwargs)
        self.record()
        return self._trained(original, inner, args, kwargs)

    def _given_one(self, value: Any) -> Any:
        value = self._mode.of(value)
        is_real = isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
        return faked(value) if is_real else value

    def _run(self, original: Any, module: Any, args: Any, kwargs: Any) -> Any:
        self._depth += 1
        low = LOW_TYPES.get(self._request.precision)
        asked = low is not None and not torch.is_autocast_enabled("cpu")
        try:
            with torch.autocast("cuda", dtype=low) if asked else nullcontext():
                return original(module, *args, **kwargs)
        finally:
            self._depth -= 1

    def _evaluated(self, original: Any, module: Any, args: Any, kwargs: Any) -> Any:
        """Evaluate without recording; equal calls once."""
        key = _key(module, args, kwargs)
        spec = self._outputs.get(key)
        with self._recorder.paused():
            if spec is not None:
                return _made_again(spec)
            result = self._run(original, module, args, kwargs)
        self._outputs[key] = _spec(result)
        return result

    def _trained(self, original: Any, module: Any, args: Any, kwargs: Any) -> Any:
        key = _key(module, args, kwargs)
        done = self._pass
        if self.by_hand and self.passes:
            self._stepped[0] = (None, Optimizing("by-hand", self._aside(), 0.0, 0.0), "loop")
            self.on_end()
        if self._repeats or self._begins_repeat(key):
            self._repeats = True
            at, done.at = done.at, done.at + 1
            _, seen, spec = done.calls[at] if at < len(done.calls) else (0, None, None)
            if seen == key and spec is not None:
                return _made_again(spec)
            self._recorder.guesses.note(
                "accumulate: passes of different shapes; all are taken to be as the first"
            )
            return self._run(original, module, args, kwargs)
        if any(each[0] == id(module) for each in done.calls) and self._recorder.skipped:
            raise NotWhenSkipping("the step calls its model more than once")
        if self._compile and self._recorder.graph is None:
            self._recorder.graph = self._graph = self._graph or StepGraph()
        if not done.calls:
            self._given = [
                each for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.Tensor)
            ]
            self._memory.add_resident(self._given)
        result = self._run(original, module, args, kwargs)
        done.calls.append((id(module), key, _spec(result)))
        return result

    def _begins_repeat(self, key: Any) -> bool:
        """Return whether a call begins a further pass over the model, before the optimizer."""
        if not self.passes or not self._one_model:
            return False
        first = self._pass.calls[0][1] if self._pass.calls else None
        if self._stepped or first is None or first[0] != key[0]:
            self._one_model = False
            return False
        self._recorder.pause()
        self._pass.at = 0
        return True

    def _backward(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Stand in for the engine under `torch.autograd.backward` and `grad`."""
        if not self._active:
            result = original(*args, **kwargs)
            self.on_real_backward()
            return result
        accumulates = kwargs.get("accumulate_grad", False)  # not so for `torch.autograd.grad`
        if self._repeats and accumulates:
            self._repeats = False
            self._recorder.resume()
            self.passes += 1
            return None
        if accumulates and not self.passes:
            self._activations = float(self._memory.live_bytes)
        with self._mode, self._differentiating():
            result = original(*args, **kwargs)
        if accumulates and not self._paths.backward:
            self.passes += 1
            self._graph, self._recorder.graph = self._recorder.graph or self._graph, None
            self._tail = len(self._recorder.operations)
            # Kept here: the step may end by setting gradients to None.
            self._updated.update(
                (id(each), each)
                for module in self._adopted.values()
                for each in module.parameters()
                if each.grad is not None
            )
        return result

    @contextmanager
    def _differentiating(self) -> Iterator[None]:
        recorder, paths = self._recorder, self._paths
        before = recorder.phase, paths.backward  # reentrant checkpoints call it inside of it
        recorder.phase, paths.backward = Phase.BACKWARD, True
        try:
            yield
        finally:
            recorder.phase, paths.backward = before

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> Any:
        """Let a copy without parameters step in the place of an optimizer."""
        if not self._active and self.is_waiting():
            return None
        if id(optimizer) in self._clones:
            return None
        if type(optimizer).__name__ == "LBFGS":
            raise ConfigError(
                "optimizer LBFGS: calls the model as often as its line search needs, which is not "
                "known before; predict a pass with another optimizer"
            )
        empty = [{**group, "params": []} for group in optimizer.param_groups]
        return (self._clone(optimizer, empty), *args[1:]), kwargs

    def _after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if id(optimizer) in self._clones or not self._active:
            return
        if id(optimizer) in self._stepped:  # the next step has begun: this one ended before
            self.on_end()
            return
        aside = self._aside()
        name, made = self._optimizing(optimizer)
        style = _style(optimizer)
        self._stepped[id(optimizer)] = (
            optimizer,
            replace(made, name=name, operations=(*aside, *made.operations)),
            style,
        )
        if self.expected and all(id(each) in self._stepped for each in self.expected):
            self.on_end()

    def _aside(self) -> tuple[Any, ...]:
        """Take the operations since the last backward pass, which happen once in a step."""
        tail = [each for each, _ in self._recorder.operations[self._tail :]]
        del self._recorder.operations[self._tail :]
        return tuple(replace(each, phase=Phase.OPTIMIZER) for each in tail)

    def _optimizing(self, optimizer: Any) -> tuple[str, Optimizing]:
        """Return the operations of an optimizer: by its rule, or traced where it has none."""
        parameters = [
            self._mode.of(each) for group in optimizer.param_groups for each in group["params"]
        ]
        with torch._C.DisableTorchFunction():
            updated = [each for each in parameters if each.grad is not None]
        precision = "fp16" if self._scaled else "fp32"
        if type(optimizer).__module__.startswith("torch.optim"):
            try:
                name = name_of(optimizer)
            except ConfigError:
                name = ""
            if name:
                asked = replace(
                    self._request, optimizer=name, style=_style(optimizer), precision=precision,
                    training=True, step=None,
                )  # fmt: skip
                with torch._C.DisableTorchFunction():
                    return name, Optimizing.of(asked, updated)
        return type(optimizer).__name__.lower(), self._traced_optimizer(optimizer)

    def _traced_optimizer(self, optimizer: Any) -> Optimizing:
        """Run an optimizer on fake parameters, twice: the first step makes its states."""
        recorder = self._recorder
        groups = [
            {**group, "params": [self._mode.of(each) for each in group["params"]]}
            for group in optimizer.param_groups
        ]
        clone = self._clone(optimizer, groups)
        guesses = recorder.guesses
        value, guesses.value = guesses.value, 1  # counters of steps, which divide
        begin = len(recorder.operations)
        recorder.phase = Phase.OPTIMIZER
        try:
            with torch.no_grad():
                with recorder.paused():
                    type(optimizer).step(clone)
                live, peak = self._memory.live_bytes, self._memory.peak_bytes
                self._memory.peak_bytes = live
                type(optimizer).step(clone)
                spare = self._memory.peak_bytes - live
                self._memory.peak_bytes = peak
        except ConfigError:
            raise
        except Exception as problem:
            raise ConfigError(
                f"optimizer {type(optimizer).__name__}: its step cannot be traced: "
                f"{_first_line(problem)}; predict with one of torch.optim"
            ) from problem
        finally:
            recorder.phase, guesses.value = Phase.FORWARD, value
        made = tuple(each for each, _ in recorder.operations[begin:])
        del recorder.operations[begin:]
        states = [
            each for each in tree_flatten([dict(one) for one in clone.state.values()])[0]
            if isinstance(each, FakeTensor) and each.dim()
        ]  # fmt: skip
        held = sum(each.numel() * each.element_size() for each in states)
        return Optimizing("", made, float(held), float(spare))

    def _clone(self, optimizer: Any, groups: list[Any]) -> Any:
        clone = object.__new__(type(optimizer))
        vars(clone).update(vars(optimizer))
        vars(clone).update(param_groups=groups, state=type(optimizer.state)(dict))
        self._clones.add(id(clone))
        self._stack.callback(lambda: clone)  # keeps it, and so its identity
        return clone

    @contextmanager
    def _autocast_followed(self) -> Iterator[None]:
        """Learn the type of autocast; free casts of weights where the outermost one ends."""
        kind: Any = torch.autocast
        enter, leave = kind.__enter__, kind.__exit__
        nested: list[bool] = []

        def entered(context: Any) -> Any:
            result = enter(context)
            nested.append(torch.is_autocast_enabled("cpu"))
            if nested[-1] and self._active and not self._paths.backward:
                self._low = torch.get_autocast_dtype("cpu")
                self._weights.keep()
            return result

        def left(context: Any, *problem: Any) -> Any:
            if nested:
                nested.pop()
            if not any(nested) and self._active and not self._paths.backward:
                self._weights.forget(self._blocks.forgetting)
            return leave(context, *problem)

        kind.__enter__, kind.__exit__ = entered, left
        try:
            yield
        finally:
            kind.__enter__, kind.__exit__ = enter, leave

    def scaled(self) -> None:
        """Note that a gradient scaler is in use."""
        self._scaled = True

    def _is_trained(self, module: Any) -> bool:
        if not self.expected:
            return False
        with torch._C.DisableTorchFunction():
            trained = {
                id(self._known.get(id(each)))
                for optimizer in self.expected
                for group in optimizer.param_groups
                for each in group["params"]
            }
            return any(id(each) in trained for each in module.parameters())

    # Result.

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Translate errors of the user's code, with file and line."""
        try:
            yield
        except ConfigError:
            raise
        except Exception as problem:
            kind = NotWhenSkipping if self._recorder.skipped else ConfigError
            raise kind(f"the step cannot be traced: {self.explain(problem)}") from problem

    def explain(self, problem: BaseException) -> str:
        """Return an error in one line, with the last line of the user's own code."""
        place = user_line(problem)
        op, path = self._recorder.failed or ("", "")
        where = f", in module '{path}'" if path else ""
        what = f", operation '{op}'" if op else ""
        at = f" at {place}" if place else ""
        return f"{type(problem).__name__}{at}{where}{what}: {_first_line(problem)}"

    def workload(self) -> Workload:
        """Return the workload of the recorded step."""
        request = self._request
        if not self.passes:
            raise ConfigError(
                "step: no backward pass was seen, so this is not a training step; let it compute "
                "the loss and call backward(), or return the loss"
            )
        held = [
            each
            for module in self._adopted.values()
            for each in (*module.parameters(), *module.buffers())
        ]
        held = list({id(each): each for each in held}.values())
        trained = [each for each in held if each.requires_grad]
        updated = [each for each in trained if id(each) in self._updated]
        kept = [each for each in updated if request.accumulate > 1]  # as large as gradients
        if not updated:
            raise ConfigError(
                "step: its backward pass reaches no trained parameter of the model; check that "
                "parameters require gradients and that the loss depends on them"
            )
        name = request.name or type(next(iter(self._adopted.values()))).__name__
        precision = self._precision(trained)
        self._recorder.graph = self._graph
        asked = replace(
            request,
            name=name,
            precision=precision,
            compile=self._compile,
            accumulate=request.accumulate if request.accumulate > 1 else self.passes_of_step,
        )
        if self._stepped:
            _, made, style = next(iter(self._stepped.values()))
            for _, other, _ in list(self._stepped.values())[1:]:
                made = Optimizing(
                    made.name,
                    (*made.operations, *other.operations),
                    made.state_bytes + other.state_bytes,
                    max(made.spare_bytes, other.spare_bytes),
                )
            asked = replace(asked, style=style)
        else:
            named = request.optimizer if isinstance(request.optimizer, str) else "adamw"
            if not isinstance(request.optimizer, str):
                self._recorder.guesses.note("optimizer: adamw, as the step has none")
            made = Optimizing.of(replace(asked, optimizer=named), updated)
        recorded = RecordedStep(
            self._recorder, self._blocks, held, self._given, kept, trained, updated,
            self._activations,
        )  # fmt: skip
        return recorded.workload(asked, made)

    @property
    def has_skipped(self) -> bool:
        """Return whether equal blocks were skipped."""
        return bool(self._recorder.skipped)

    @property
    def passes_of_step(self) -> int:
        """Passes of a step over one model; 1 where passes differ and all were recorded."""
        return self.passes if self._one_model else 1

    def _precision(self, trained: Sequence[Any]) -> str:
        """Return the name of the precision that the step has."""
        if self._request.precision != "fp32":
            return self._request.precision
        low = self._low or next((each.dtype for each in trained if each.dtype in _NAMES), None)
        if low is not None:
            return dtype_name(low)
        return "tf32" if uses_tf32() else "fp32"


def uses_tf32() -> bool:
    """Return whether torch is set to compute products of float32 by TF32."""
    return bool(torch.get_float32_matmul_precision() != "highest")


_NAMES = (torch.bfloat16, torch.float16)


def _raise_end() -> None:
    raise StepEnd


def _has_parameters(module: Any) -> bool:
    with torch._C.DisableTorchFunction():
        return next(module.parameters(), None) is not None


def unwrapped(module: Any) -> tuple[Any, str]:
    """Return the module without `torch.compile` and data parallel wrappers; mode of the first."""
    mode = ""
    while True:
        if "_orig_mod" in vars(module).get("_modules", {}):
            mode, module = compile_mode(module), module._orig_mod
        elif type(module).__name__ in ("DistributedDataParallel", "DataParallel"):
            module = module.module
        else:
            break
    if not mode and getattr(module, "_compiled_call_impl", None) is not None:
        mode = "default"
    return module, mode


def compile_mode(module: Any) -> str:
    """Return the nearest mode that can be predicted of a module that `torch.compile` made."""
    options = getattr(getattr(module, "dynamo_ctx", None), "compiler_config", None) or {}
    return MODES[-1] if options.get("triton.cudagraphs") else MODES[0]


def _refuse_sharded(module: Any) -> None:
    kind = type(module).__name__
    sharded = kind == "FullyShardedDataParallel" or any(
        type(each).__name__ == "DTensor" for each in module.parameters()
    )
    if sharded:
        raise ConfigError(
            f"model: {kind} is sharded over GPUs; give the model before it is sharded, and state "
            "how many GPUs share it"
        )


def _key(module: Any, args: Any, kwargs: Any) -> Any:
    leaves, shape = tree_flatten((args, kwargs))
    shapes = tuple(
        (tuple(each.shape), each.dtype) if isinstance(each, torch.Tensor) else None
        for each in leaves
    )
    return id(module), module.training, torch.is_grad_enabled(), str(shape), shapes


def _spec(result: Any) -> Any:
    """Return what makes outputs of the same shapes again; None where it is not known."""
    leaves, shape = tree_flatten(result)
    places: list[Any] = []
    for each in leaves:
        if isinstance(each, torch.Tensor):
            places.append((tuple(each.shape), each.stride(), each.dtype, each.requires_grad))
        elif each is None or isinstance(each, (bool, int, float, str)):
            places.append(each)
        else:
            return None
    return shape, places


def _made_again(spec: Any) -> Any:
    shape, places = spec
    made = []
    for place in places:
        if isinstance(place, tuple):
            size, stride, dtype, differentiable = place
            tensor = torch.empty_strided(size, stride, dtype=dtype)
            # A copy is not a leaf, so that the loss may be divided in place.
            made.append(tensor.requires_grad_().clone() if differentiable else tensor)
        else:
            made.append(place)
    return tree_unflatten(made, shape)


def _style(optimizer: Any) -> str:
    group = optimizer.param_groups[0]
    if group.get("fused"):
        return "fused"
    return "loop" if group.get("foreach") is False else "foreach"


def user_line(problem: BaseException) -> str:
    """Return file and line of the innermost frame that is not of a library; empty for none."""
    here = str(Path(__file__).parents[3])
    frames = [
        each
        for each in traceback.extract_tb(problem.__traceback__)
        if not any(part in each.filename for part in ("site-packages", "dist-packages", here, "<"))
        and not each.filename.startswith(sys.base_prefix + "/lib/python")
    ]
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def _first_line(problem: BaseException) -> str:
    lines = str(problem).strip().splitlines()
    return lines[0] if lines else "no reason given"


@contextmanager
def _replaced(owner: Any, name: str, replacement: Any) -> Iterator[None]:
    """Call `replacement(original, ...)` in the place of a function within this context."""
    original = vars(owner)[name]

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        return replacement(original, *args, **kwargs)

    setattr(owner, name, call)
    try:
        yield
    finally:
        setattr(owner, name, original)


def _scaler(capture: StepCapture) -> Iterator[tuple[Any, str, Any]]:
    """Return replacements of the gradient scaler's methods, whose cost is added by a rule."""
    kind = torch.amp.GradScaler

    def scale(_: Any, scaler: Any, outputs: Any) -> Any:
        capture.scaled()
        return outputs

    def step(_: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        return optimizer.step(*args, **kwargs)

    for name, replacement in {
        "scale": scale,
        "unscale_": lambda *_: None,
        "step": step,
        "update": lambda *_, **__: None,
    }.items():
        yield kind, name, replacement


def _schedulers() -> Iterator[tuple[Any, str, Any]]:
    """Return replacements of the steps of schedules, so that rates stay."""
    found = [torch.optim.lr_scheduler.LRScheduler]
    for kind in found:
        found += kind.__subclasses__()
    for kind in dict.fromkeys(found):
        if "step" in vars(kind):
            yield kind, "step", lambda *_, **__: None


@contextmanager
def _compiled_as_eager() -> Iterator[None]:
    """Run what `torch.compile` made as it was written, within this context."""
    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        # Of hooks that would be called twice, which they are not.
        warnings.filterwarnings("ignore", message="Using `torch.compile")
        yield


@contextmanager
def _lists_on_fake() -> Iterator[None]:
    """Let optimizers and norms take lists of fake tensors, as they do on CUDA."""
    import torch.optim.optimizer as optimizers
    import torch.utils._foreach_utils as lists

    kinds = (optimizers._foreach_supported_types, lists._foreach_supported_types)
    devices = optimizers._get_foreach_kernels_supported_devices
    for each in kinds:
        each.append(FakeTensor)
    optimizers._get_foreach_kernels_supported_devices = lambda: [*devices(), "cpu"]
    try:
        yield
    finally:
        optimizers._get_foreach_kernels_supported_devices = devices
        for each in kinds:
            each.remove(FakeTensor)
