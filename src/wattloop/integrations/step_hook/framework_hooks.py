"""Hooks of other frameworks: logs of Hugging Face's Trainer (and TRL's) and of Lightning, batches
of Keras 3, compilations of JAX, and the open runs of MLflow, W&B and TensorBoard.

Steps and evaluations under a Trainer or Lightning come from the hook of PyTorch. Steps of plain JAX
are not counted: Optax and Flax are called while a function is traced, and a compiled function may
hold one step, a part of one, or a loop of many.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from .program_steps import ProgramSteps
from .step_file import COMPILE, EPOCH, LOSS, TOKENS, TRAINER_STEP

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
        steps.metric(TRAINER_STEP, state.global_step)
        for name in TOKEN_NAMES:
            steps.metric(TOKENS, logs.get(name))

    _follow(trainer_callback.CallbackHandler, "on_log", logged)


def install_keras(callback_list: Any) -> None:
    """Follow the calls of every `CallbackList`; `callback_list` is the module that defines it."""
    steps = ProgramSteps.shared()

    def batch_ended(_batch: Any, logs: Any = None, *_: Any) -> None:
        steps.step()
        steps.metric(LOSS, _host_number((logs or {}).get("loss")))

    def epoch_ended(epoch: int, logs: Any = None, *_: Any) -> None:
        steps.metric(EPOCH, epoch + 1)
        steps.metric(LOSS, _host_number((logs or {}).get("loss")))

    followed: dict[str, Callable[..., None]] = {
        "on_train_batch_end": batch_ended,
        "on_epoch_end": epoch_ended,
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


def install_lightning(call: Any) -> None:
    """Follow the calls of callbacks; `call` is the module lightning.pytorch.trainer.call."""
    steps = ProgramSteps.shared()

    def called(trainer: Any, hook: str, output: Any = None, *_: Any) -> None:
        if hook == "on_train_batch_end":
            loss = output.get("loss") if isinstance(output, Mapping) else output
            steps.metric(LOSS, _host_number(loss))
        elif hook == "on_train_epoch_end":
            steps.metric(EPOCH, trainer.current_epoch + 1)

    _follow(call, "_call_callback_hooks", called, with_self=True)


def _host_number(value: Any) -> Any:
    """Return a number; None for a value that a device may still be computing."""
    on_host = getattr(getattr(value, "device", None), "type", "") == "cpu"
    return float(value.detach()) if on_host and hasattr(value, "detach") else value


def install_tensorboard(module: Any) -> None:
    """Learn where TensorBoard's writers write; `module` is torch.utils.tensorboard.writer."""
    steps = ProgramSteps.shared()

    def made(writer: Any, *_: Any) -> None:
        folder = os.path.abspath(str(writer.log_dir))  # noqa: PTH100
        steps.trackers.append({"tracker": "tensorboard", "into": folder})

    _follow(module.SummaryWriter, "__init__", made, with_self=True)


def open_runs() -> list[dict[str, str]]:
    """Return the runs that MLflow and W&B have open in this process; imports nothing."""
    found = []
    mlflow, wandb = sys.modules.get("mlflow"), sys.modules.get("wandb")
    run = mlflow.active_run() if mlflow is not None and hasattr(mlflow, "active_run") else None
    if mlflow is not None and run is not None:
        uri = re.sub("//[^/@]*@", "//", str(mlflow.get_tracking_uri()))  # without a password
        if "://" not in uri and not uri.startswith("file:"):
            uri = os.path.abspath(uri)  # noqa: PTH100
        found.append({"tracker": "mlflow", "into": str(run.info.run_id), "uri": uri})
    run = getattr(wandb, "run", None)
    if run is not None:
        place = "/".join(filter(None, [run.entity, run.project, run.id]))
        found.append({"tracker": "wandb", "into": place})
    return found


def _follow(owner: Any, name: str, follow: Callable[..., None], *, with_self: bool = False) -> None:
    """Call `follow` after each call of a method, or with its first argument of a function."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        try:
            follow(*((self,) if with_self else ()), *args)
        except Exception:  # noqa: BLE001 - the training matters more than its steps
            return result
        return result

    setattr(owner, name, method)
