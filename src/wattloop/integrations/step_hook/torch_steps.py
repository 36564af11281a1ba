"""Hook of PyTorch: optimizer steps, batches, evaluations, checkpoints and compilations.

A step ends when the leading optimizer has stepped. The first optimizer seen leads; others (the
second network of a GAN, one optimizer per parameter) belong to its steps. When it no longer steps,
because the program trains the next model, another takes over.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from .program_steps import ON_HOST, ProgramSteps
from .step_file import CHECKPOINT, COMPILE

STEPS_BEFORE_TAKEOVER = 4
"""Steps of one other optimizer after which a silent leader is replaced, if it was never silent for
longer: the critic of a GAN may step several times for each step of the generator.
"""


BACKWARDS_BEFORE_STEPS = 256
"""Backward passes without any optimizer after which each is written at once as a step. Fewer are
known as steps when the program ends.
"""
MOST_TRAINED = 0.9
"""Part of the trained parameters that a module holds whose eval mode is an evaluation. Layers that
stay in eval mode, such as frozen batch norms, hold less.
"""


class OptimizerSteps:
    """Finds the leading optimizer, and the modules that it trains.

    A program without an optimizer updates its weights by hand: its steps are its backward passes
    in training mode.
    """

    def __init__(self, steps: ProgramSteps) -> None:
        self.exist = False
        """Whether the program has made an optimizer."""
        self._steps = steps
        self._leader: Any = None
        self._device: int | None = None
        self._inner: dict[int, int] = {}
        """Optimizer -> unfinished calls of `step` inside another one of it."""
        self._others: dict[int, list[float]] = {}
        """Optimizer -> times of its steps since the leader's last one."""
        self._alternate: set[int] = set()
        """Optimizers that step in turn with the leader."""
        self._most_steps = 0
        self._trained: set[int] = set()
        self._training = True
        self._backwards_s: list[float] = []
        self._by_hand = False

    def forget(self) -> None:
        """Leave what is not a step yet to the parent, in a forked child: any optimizer may lead."""
        self._leader = None
        self._others.clear()
        self._backwards_s, self._by_hand = [], False

    def after_backward(self) -> None:
        """Called after each backward pass."""
        if self.exist or not self._training or (self._steps.count and not self._by_hand):
            return  # steps are those of an optimizer, or of another framework
        if len(self._backwards_s) < BACKWARDS_BEFORE_STEPS:
            self._backwards_s.append(time.monotonic())
            return
        self._add_backwards()
        self._by_hand = True
        self._steps.end_evaluation()
        self._steps.step()

    def before_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Called before each `Optimizer.step`; a subclass may call that of its base class."""
        # torch's wrapper of `step` calls this function; a caller of it with the same code and
        # optimizer is the subclass's step.
        if _is_inside(optimizer, sys._getframe(2)):
            self._inner[id(optimizer)] = self._inner.get(id(optimizer), 0) + 1
        else:
            self._inner.pop(id(optimizer), None)

    def after_step(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        """Called after each `Optimizer.step`, of any optimizer."""
        if inner := self._inner.get(id(optimizer)):
            self._inner[id(optimizer)] = inner - 1
            return
        leader = None if self._leader is None else self._leader()
        if leader is optimizer:
            self._alternate.update(self._others)
            self._most_steps = max([self._most_steps, *map(len, self._others.values())])
            self._others.clear()
        elif not self._takes_over(optimizer, leader):
            return
        self._steps.end_evaluation()
        self._steps.step(device=self._device)

    def after_mode(self, module: Any, training: bool) -> None:
        """Called after `model.train()` and `model.eval()`."""
        self._training = training
        if training:
            self._steps.end_evaluation()
        elif self._is_trained(module):
            self._steps.begin_evaluation()

    def finish(self) -> None:
        """Add what is known as steps at the end only: short trainings, passes by hand."""
        self._add_others()
        if not self.exist and not self._steps.count:
            self._add_backwards()
        self._backwards_s, self._by_hand = [], False

    def _add_backwards(self) -> None:
        if not self._steps.count:
            for time_s in self._backwards_s:
                self._steps.step(time_s)

    def _add_others(self) -> None:
        """Add steps of optimizers that stepped after the leader and never in turn with it."""
        times_s = [
            time_s
            for optimizer, times_s in self._others.items()
            if optimizer not in self._alternate
            for time_s in times_s
        ]
        self._others.clear()
        for time_s in sorted(times_s):
            self._steps.step(time_s)

    def _is_trained(self, module: Any) -> bool:
        parameters = list(module.parameters())
        if self._trained:
            held = sum(id(parameter) in self._trained for parameter in parameters)
            return held >= MOST_TRAINED * len(self._trained)
        if not self._backwards_s:
            return False
        graded = sum(parameter.grad is not None for parameter in parameters)
        return graded >= MOST_TRAINED * len(parameters) > 0

    def _takes_over(self, optimizer: Any, leader: Any) -> bool:
        times_s = self._others.setdefault(id(optimizer), [])
        if leader is not None and len(times_s) < max(STEPS_BEFORE_TAKEOVER, 2 * self._most_steps):
            times_s.append(time.monotonic())
            return False
        self._alternate.discard(id(optimizer))
        self._add_others()
        self._leader = weakref.ref(optimizer)
        self._most_steps = 0
        self._alternate.clear()
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._trained = {id(parameter) for parameter in parameters}
        device: Any = getattr(parameters[0], "device", None) if parameters else None
        self._device = device.index if getattr(device, "type", "") == "cuda" else ON_HOST
        return True


def _is_inside(optimizer: Any, wrapper: Any) -> bool:
    """Return True if a caller of the frame `wrapper` is the same wrapper of the same optimizer."""
    frame = wrapper.f_back
    while frame is not None:
        if frame.f_code is wrapper.f_code:
            return any(value is optimizer for value in frame.f_locals.values())
        frame = frame.f_back
    return False


def install(torch: Any) -> None:
    """Hook the torch module that was just imported.

    Raises:
        ImportError: this torch has no global optimizer hooks (it is older than 2.0).
    """
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    steps = ProgramSteps.shared()
    optimizers = OptimizerSteps(steps)
    register_optimizer_step_pre_hook(_guarded(optimizers.before_step))
    register_optimizer_step_post_hook(_guarded(optimizers.after_step))
    _watch_creation(torch, optimizers)
    steps.before_exit.append(optimizers.finish)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=optimizers.forget)
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


def _guarded(function: Callable[..., None]) -> Callable[..., None]:
    """Return a function that never raises: the program's objects may do anything."""

    def call(*args: Any) -> None:
        try:
            function(*args)
        except Exception:  # noqa: BLE001 - the training matters more than its steps
            return

    return call


def _watch_creation(torch: Any, optimizers: OptimizerSteps) -> None:
    original = torch.optim.Optimizer.__init__

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - stands in for it
        optimizers.exist = True
        original(self, *args, **kwargs)

    torch.optim.Optimizer.__init__ = __init__


def _watch_backward(torch: Any, optimizers: OptimizerSteps) -> None:
    original = torch.autograd.backward
    notice = _guarded(optimizers.after_backward)

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        notice()
        return result

    torch.autograd.backward = backward


def _watch_batches(torch: Any, steps: ProgramSteps) -> None:
    iterator = torch.utils.data.dataloader._BaseDataLoaderIter
    original = iterator.__next__
    numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
    fresh = itertools.count(1)

    def notice(self: Any, begin_s: float, batch: Any) -> None:
        if (number := numbers.get(self)) is None:
            number = numbers[self] = next(fresh)
        steps.batch(number, begin_s, batch_samples(batch))

    notice = _guarded(notice)

    @functools.wraps(original)
    def __next__(self: Any) -> Any:  # noqa: N807 - stands in for the method of that name
        begin_s = time.monotonic()
        batch = original(self)
        notice(self, begin_s, batch)
        return batch

    iterator.__next__ = __next__


def batch_samples(batch: Any) -> float:
    """Return the first dimension of the first tensor of a batch; NaN where there is none."""
    for _ in range(4):
        shape = getattr(batch, "shape", None)
        if shape is not None:
            return float(shape[0]) if len(shape) else 1.0
        if isinstance(batch, Mapping) and batch:
            batch = next(iter(batch.values()))
        elif isinstance(batch, (list, tuple)) and batch:
            batch = batch[0]
        else:
            break
    return math.nan


def _watch_mode(torch: Any, optimizers: OptimizerSteps) -> None:
    """Follow `Module.train`, which `eval` calls too, and which calls itself for each child."""
    original = torch.nn.Module.train
    outermost = threading.local()
    notice = _guarded(optimizers.after_mode)

    @functools.wraps(original)
    def train(self: Any, mode: bool = True) -> Any:
        if getattr(outermost, "entered", False):
            return original(self, mode)
        outermost.entered = True
        try:
            result = original(self, mode)
        finally:
            outermost.entered = False
        notice(self, bool(mode))
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

    # Both names: pickle looks the function up by its own module.
    torch.save = torch.serialization.save = save
