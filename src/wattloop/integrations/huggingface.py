"""Hugging Face `Trainer`.

from wattloop.integrations.huggingface import EnergyCallback

energy = EnergyCallback()
Trainer(..., callbacks=[energy]).train()
print(energy.meter.energy_so_far_j())
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import TrainerCallback

from wattloop.core.results import RunStatus
from wattloop.integrations.loggers import TensorBoardLogger
from wattloop.integrations.torch_loop import EnergyMeter

__all__ = ["EnergyCallback"]


class EnergyCallback(TrainerCallback):  # type: ignore[misc] # transformers is not typed here
    """Measures a training per optimizer step and epoch.

    W&B and MLflow runs that the trainer opens are found by themselves. TensorBoard's writer
    belongs to the trainer: `EnergyCallback.attach(trainer)` finds it.

    Args:
        options: what `EnergyMeter` takes.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._trainer: Any = None
        self.meter = EnergyMeter(**options)

    @classmethod
    def attach(cls, trainer: Any, **options: Any) -> EnergyCallback:
        """Add a callback to `trainer` that also reports to its TensorBoard writer."""
        callback = cls(**options)
        callback._trainer = trainer
        trainer.add_callback(callback)
        return callback

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin; a second `train()` is a run of its own."""
        if self.meter.result is not None:
            self.meter.end(RunStatus.FAILED)  # one that broke off; what has ended stays as it is
            self.meter = EnergyMeter(**self._options)
        self.meter.loggers = (*self.meter.loggers, *self._trainers_writers())
        self.meter.begin()
        self.meter.tell_precision(_precision(args, kwargs.get("model")))

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An epoch begins."""
        self.meter.epoch_begin(int(state.epoch or 0))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An optimizer step begins (of several batches where gradients accumulate)."""
        self.meter.step_begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """It has ended."""
        self.meter.step_end()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Loss and metrics, as often as the trainer reports them."""
        self.meter.log(**{name: v for name, v in (logs or {}).items() if name != "epoch"})

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Evaluation belongs to no step."""
        self.meter.interrupt()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Neither does writing a checkpoint."""
        self.meter.interrupt()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An epoch has ended."""
        self.meter.epoch_end()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End."""
        self.meter.end()

    def _trainers_writers(self) -> list[TensorBoardLogger]:
        if self._trainer is None:
            return []
        callbacks = self._trainer.callback_handler.callbacks
        writers = [getattr(callback, "tb_writer", None) for callback in callbacks]
        return [TensorBoardLogger(writer) for writer in writers if writer is not None]


def _precision(args: Any, model: Any) -> str:
    """Of the matrix products: that of autocast, else of the weights, else tf32 where it is on."""
    for name in ("bf16", "fp16"):
        if getattr(args, name, False):
            return name
    weights = str(getattr(model, "dtype", "float32")).removeprefix("torch.")
    if weights == "float32" and torch.backends.cuda.matmul.allow_tf32:
        return "tf32"
    return weights
