"""Hooks of other frameworks: logs of Hugging Face's Trainer (and TRL's), batches of Keras 3, and
compilations of JAX.

Steps and evaluations under a Trainer come from the hook of PyTorch. Steps of plain JAX are not
counted: Optax and Flax are called while a function is traced, and a compiled function may hold one
step, a part of one, or a loop of many.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from .program_steps import ProgramSteps
from .step_file import COMPILE, EPOCH, LOSS, TOKENS

TOKEN_NAMES = ("num_tokens", "num_input_tokens_seen")
"""Logged by TRL's trainers; by the Trainer with `include_num_input_tokens_seen`."""

COMPILATION_OF_JAX = "/jax/core/compile/"
"""Events of `jax.monitoring`: tracing, lowering and XLA's compilation."""


def install_transformers(trainer_callback: Any) -> None:
    """Follow what every Trainer logs; `trainer_callback` is transformers.trainer_callback."""
    steps = ProgramSteps.shared()

    def logged(_args: Any, state: Any, _control: Any, logs: Any = None, *_: Any) -> None:
        logs = logs or {}
        steps.metric(LOSS, logs.get("loss"))
        steps.metric(EPOCH, state.epoch)
        for name in TOKEN_NAMES:
            steps.metric(TOKENS, logs.get(name))

    _follow(trainer_callback.CallbackHandler, "on_log", logged)


def install_keras(callback_list: Any) -> None:
    """Follow the calls of every `CallbackList`; `callback_list` is the module that defines it."""
    steps = ProgramSteps.shared()
    followed: dict[str, Callable[..., None]] = {
        "on_train_batch_end": lambda *_: steps.step(),
        "on_epoch_end": lambda epoch, *_: steps.metric(EPOCH, epoch + 1),
        "on_test_begin": lambda *_: steps.begin_evaluation(),
        "on_test_end": lambda *_: steps.end_evaluation(),
    }
    for name, follow in followed.items():
        _follow(callback_list.CallbackList, name, follow)


def install_jax(_jax: Any) -> None:
    """Follow compilations through the listeners that JAX offers, since 0.4."""
    from jax import monitoring

    steps = ProgramSteps.shared()

    def ended(event: str, duration_s: float, **_: Any) -> None:
        try:
            if event.startswith(COMPILATION_OF_JAX):
                steps.span(COMPILE, time.monotonic() - duration_s)
        except Exception:  # noqa: BLE001 - the training matters more than its phases
            return

    monitoring.register_event_duration_secs_listener(ended)


def _follow(owner: Any, name: str, follow: Callable[..., None]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        try:
            follow(*args)
        except Exception:  # noqa: BLE001 - the training matters more than its steps
            return result
        return result

    setattr(owner, name, method)
