"""Hugging Face `Trainer`.

from wattloop.integrations.huggingface import EnergyCallback

energy = EnergyCallback()
Trainer(..., callbacks=[energy]).train()
print(energy.meter.energy_so_far_j())
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

import torch
from transformers import TrainerCallback

from wattloop.core.results import RunStatus
from wattloop.integrations.loggers import TensorBoardLogger
from wattloop.integrations.torch_loop import EnergyMeter
from wattloop.integrations.training_meter import TrainingMeter


class EnergyCallback(TrainerCallback):  # type: ignore[misc] # transformers is not typed here
    """Measures a training per optimizer step and epoch.

    Trackers of the trainer's `report_to` get the energy of steps as often as the trainer logs, at
    its own step: TensorBoard, MLflow, W&B, Trackio, Comet and ClearML.

    Args:
        options: what `EnergyMeter` takes.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._tokens = 0
        self.meter = EnergyMeter(**options)

    @classmethod
    def attach(cls, trainer: Any, **options: Any) -> EnergyCallback:
        """Add a callback to a trainer that is there already."""
        callback = cls(**options)
        trainer.add_callback(callback)
        return callback

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin; a second `train()` is a run of its own."""
        if self.meter.result is not None:
            self.meter.end(RunStatus.FAILED)  # one that broke off; what has ended stays as it is
            self.meter = EnergyMeter(**self._options)
        self._come_first()
        self._add_writers()
        self.meter.at_step = state.global_step
        self.meter.report_every_s = math.inf  # the trainer has an interval of its own
        self._tokens = state.num_input_tokens_seen or 0
        self.meter.begin()
        self.meter.tell_precision(_precision(args, kwargs.get("model")))

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.meter.epoch_begin(int(state.epoch or 0))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An optimizer step begins (of several batches where gradients accumulate)."""
        self.meter.step_begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An optimizer step has ended, with its tokens where the trainer counts them."""
        self.meter.at_step = state.global_step
        tokens = state.num_input_tokens_seen or 0  # with `include_num_input_tokens_seen`
        more, self._tokens = tokens - self._tokens, tokens
        self.meter.step_end(**({"tokens": more} if more > 0 else {}))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Loss and metrics, as often as the trainer reports them."""
        logs = logs or {}
        self.meter.log(**{name: v for name, v in logs.items() if name != "epoch"})
        if isinstance(logs.get("loss"), int | float):  # not of the summary at the end
            self.meter.log_step(loss=logs["loss"])
            self.meter.report_steps()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Evaluation belongs to no step."""
        self.meter.interrupt()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Neither does writing a checkpoint."""
        self.meter.interrupt()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._add_writers()
        self.meter.epoch_end()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.meter.end()

    def _add_writers(self) -> None:
        """Report to TensorBoard writers of the trainer's other callbacks that are open by now."""
        known = [logger.target for logger in self.meter.loggers if isinstance(logger, _Writer)]
        for callback in self._siblings():
            writer = getattr(callback, "tb_writer", None)
            if writer is not None and writer not in known:
                self.meter.loggers = (*self.meter.loggers, _Writer(writer))

    def _come_first(self) -> None:
        """Be called before the trainer's trackers, which close their runs when the training ends.

        Our totals are known and reported before that.
        """
        callbacks = self._siblings()
        if isinstance(callbacks, list) and callbacks[0] is not self:
            callbacks.remove(self)
            callbacks.insert(0, self)

    def _siblings(self) -> Sequence[Any]:
        """All callbacks of the trainer. It passes no reference to itself: its handler, the object
        that calls us, has them.
        """
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            callbacks = getattr(frame.f_locals.get("self"), "callbacks", None)
            if isinstance(callbacks, list) and self in callbacks:
                return callbacks
            frame = frame.f_back
        return ()


class _Writer(TensorBoardLogger):
    """A writer that belongs to the trainer, which closes it before the totals are known."""

    def __init__(self, writer: Any) -> None:
        super().__init__(writer)
        self.target = writer

    def total(self, meter: TrainingMeter) -> None:
        """Written to a file of its own next to the trainer's, and closed as the trainer did."""
        super().total(meter)
        self._writer.close()


def _precision(args: Any, model: Any) -> str:
    """Of the matrix products: that of autocast, else of the weights, else tf32 where it is on."""
    for name in ("bf16", "fp16"):
        if getattr(args, name, False):
            return name
    weights = str(getattr(model, "dtype", "float32")).removeprefix("torch.")
    if weights == "float32" and torch.backends.cuda.matmul.allow_tf32:
        return "tf32"
    return weights
