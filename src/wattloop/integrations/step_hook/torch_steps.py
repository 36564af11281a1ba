"""Hook of PyTorch: optimizer steps, batches, evaluations, checkpoints and compilations.

A step ends when the leading optimizer has stepped. The first optimizer seen leads; others (the
second network of a GAN, one optimizer per parameter) belong to its steps. When it no longer steps,
because the program trains the next model, another takes over.
"""

from __future__ import annotations

import functools
import itertools
import math
import threading
import time
import weakref
from typing import Any

from .program_steps import ProgramSteps
from .step_file import CHECKPOINT, COMPILE

STEPS_BEFORE_TAKEOVER = 4
"""Steps of one other optimizer after which a silent leader is replaced, if it was never silent for
longer: the critic of a GAN may step several times for each step of the generator.
"""


BACKWARDS_BEFORE_STEPS = 256
"""Backward passes without any optimizer after which each is a step: more than gradients are
accumulated over. Fewer are known as steps when the program ends.
"""


class OptimizerSteps:
    """Finds the leading optimizer, and the modules that it trains.

    A program without an optimizer updates its weights by hand: its steps are its backward passes.
    """

    def __init__(self, steps: ProgramSteps) -> None:
        self._steps = steps
        self._leader: Any = None
        self._others: dict[int, list[float]] = {}
        """Optimizer -> times of its steps since the leader's last one."""
        self._most_steps = 0
        self._trained: set[int] = set()
        self._backwards_s: list[float] = []

    def after_backward(self) -> None:
        """Called after each backward pass."""
        if self._leader is not None:
            return
        if len(self._backwards_s) < BACKWARDS_BEFORE_STEPS:
            self._backwards_s.append(time.monotonic())
            return
        self.finish()
        self._steps.end_evaluation()
        self._steps.step()

    def finish(self) -> None:
        """Add the backward passes of a program that has no optimizer."""
        if self._leader is None and self._backwards_s and not self._steps.count:
            for time_s in self._backwards_s:
                self._steps.step(time_s)

    def after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Called after each `Optimizer.step`, of any optimizer."""
        leader = None if self._leader is None else self._leader()
        if leader is not optimizer and not self._takes_over(optimizer, leader):
            return
        self._most_steps = max([self._most_steps, *map(len, self._others.values())])
        self._others.clear()
        self._steps.end_evaluation()
        self._steps.step()

    def after_mode(self, module: Any, training: bool) -> None:
        """Called after `model.train()` and `model.eval()`."""
        if training:
            self._steps.end_evaluation()
        elif any(self._is_trained(parameter) for parameter in module.parameters()):
            self._steps.begin_evaluation()  # not for frozen parts, which stay in eval mode

    def _is_trained(self, parameter: Any) -> bool:
        if self._trained:
            return id(parameter) in self._trained
        return bool(self._backwards_s) and parameter.grad is not None

    def _takes_over(self, optimizer: Any, leader: Any) -> bool:
        times_s = self._others.setdefault(id(optimizer), [])
        if leader is not None and len(times_s) < max(STEPS_BEFORE_TAKEOVER, 2 * self._most_steps):
            times_s.append(time.monotonic())
            return False
        for time_s in self._others.pop(id(optimizer)):
            self._steps.step(time_s)
        self._leader = weakref.ref(optimizer)
        self._others.clear()
        self._most_steps = 0
        self._trained = {id(p) for group in optimizer.param_groups for p in group["params"][:64]}
        return True


def install(torch: Any) -> None:
    """Hook the torch module that was just imported.

    Raises:
        ImportError: this torch has no global optimizer hooks (it is older than 2.0).
    """
    from torch.optim.optimizer import register_optimizer_step_post_hook

    steps = ProgramSteps.shared()
    optimizers = OptimizerSteps(steps)
    register_optimizer_step_post_hook(optimizers.after_step)
    steps.before_exit.append(optimizers.finish)
    _watch_backward(torch, optimizers)
    _watch_batches(torch, steps)
    _watch_mode(torch, optimizers)
    _watch_checkpoints(torch, steps)


def install_compilation(callback: Any) -> None:
    """Follow `torch.compile`: `callback` is torch._dynamo.callback, of torch 2.4 and later."""
    steps = ProgramSteps.shared()
    handler = getattr(callback, "callback_handler", None)
    if handler is None:
        return
    begins_s: list[float] = []

    def begin(*_: Any) -> None:
        begins_s.append(time.monotonic())

    def end(*_: Any) -> None:
        if begins_s:
            steps.span(COMPILE, begins_s.pop())

    handler.register_start_callback(begin)
    handler.register_end_callback(end)


def _watch_backward(torch: Any, optimizers: OptimizerSteps) -> None:
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        optimizers.after_backward()
        return result

    torch.autograd.backward = backward


def _watch_batches(torch: Any, steps: ProgramSteps) -> None:
    iterator = torch.utils.data.dataloader._BaseDataLoaderIter
    original = iterator.__next__
    numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
    fresh = itertools.count(1)

    @functools.wraps(original)
    def __next__(self: Any) -> Any:  # noqa: N807 - stands in for the method of that name
        begin_s = time.monotonic()
        batch = original(self)
        size = getattr(getattr(self, "_index_sampler", None), "batch_size", None)
        samples = size if isinstance(size, int) else math.nan
        if (number := numbers.get(self)) is None:
            number = numbers[self] = next(fresh)
        steps.batch(number, begin_s, samples)
        return batch

    iterator.__next__ = __next__


def _watch_mode(torch: Any, optimizers: OptimizerSteps) -> None:
    """Follow `Module.train`, which `eval` calls too, and which calls itself for each child."""
    original = torch.nn.Module.train
    outermost = threading.local()

    @functools.wraps(original)
    def train(self: Any, mode: bool = True) -> Any:
        if getattr(outermost, "entered", False):
            return original(self, mode)
        outermost.entered = True
        try:
            result = original(self, mode)
        finally:
            outermost.entered = False
        try:
            optimizers.after_mode(self, bool(mode))
        except Exception:  # noqa: BLE001 - a module may define `parameters` as it likes
            return result
        return result

    torch.nn.Module.train = train


def _watch_checkpoints(torch: Any, steps: ProgramSteps) -> None:
    original = torch.save

    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> Any:
        begin_s = time.monotonic()
        try:
            return original(*args, **kwargs)
        finally:
            steps.span(CHECKPOINT, begin_s)

    torch.save = save
