"""Lightning, whether it is called `lightning` or `pytorch_lightning`.

from wattloop.integrations.lightning import EnergyCallback

energy = EnergyCallback()
Trainer(callbacks=[energy]).fit(model)
print(energy.meter.last_epoch.energy_j)
"""

from __future__ import annotations

import importlib
import math
import sys
from typing import Any

from wattloop.core.results import RunStatus
from wattloop.integrations.loggers import EnergyLogger, MetricsLogger
from wattloop.integrations.step_hook.torch_steps import batch_samples
from wattloop.integrations.torch_loop import EnergyMeter

PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def callback_class() -> Any:
    """The base class of the package that the program uses, else of the one that is installed."""
    loaded = [name for name in PACKAGES if name in sys.modules]
    for name in (*loaded, *PACKAGES):
        try:
            return importlib.import_module(name).Callback
        except ImportError:
            continue
    raise ImportError("Lightning is not installed; run pip install 'wattloop[lightning]'")


class EnergyCallback(callback_class()):  # type: ignore[misc] # the base is chosen when imported
    """Measures `fit` per batch and epoch and reports to the trainer's own loggers.

    An epoch contains its validation, as in Lightning itself; a step does not.

    Args:
        options: what `EnergyMeter` takes.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._options = options
        self.meter: EnergyMeter = EnergyMeter(**options)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin; a second `fit` is a run of its own."""
        own = tuple(TrainerLogger(logger) for logger in trainer.loggers)
        self.meter = _LightningMeter(own, **self._options)
        self.meter.report_every_s = math.inf  # the trainer has an interval of its own
        self.meter.begin()
        self.meter.tell_precision(str(trainer.precision))

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.meter.epoch_begin(trainer.current_epoch)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        self.meter.step_begin()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """It has ended; its loss stays on the device until it can be had for nothing."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        samples = batch_samples(batch)
        self.meter.at_step = step = _batches_that_stepped(trainer)
        self.meter.step_end(loss, **({} if math.isnan(samples) else {"samples": samples}))
        if (step + 1) % max(1, trainer.log_every_n_steps) == 0:
            self.meter.report_steps()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Validation belongs to no step."""
        self.meter.interrupt()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """An epoch has ended, its validation included."""
        self.meter.at_step = max(0, _batches_that_stepped(trainer) - 1)
        self.meter.epoch_end(**trainer.callback_metrics)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.meter.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End of a training that failed."""
        self.meter.end(RunStatus.FAILED)


class TrainerLogger(MetricsLogger):
    """One of the trainer's loggers."""

    def __init__(self, logger: Any) -> None:
        super().__init__()
        self._logger = logger

    def write(
        self, numbers: dict[str, float], step: int, epoch: int | None, *, total: bool
    ) -> None:
        """Log at the step at which Lightning logs what the model reports then."""
        self._logger.log_metrics(numbers, step=step)


def _batches_that_stepped(trainer: Any) -> int:
    """Return the step of Lightning's loggers; in `on_train_batch_end` that of the batch itself.

    Unlike `global_step` it counts a batch once where several optimizers step.
    """
    loop = getattr(getattr(trainer, "fit_loop", None), "epoch_loop", None)
    return int(getattr(loop, "_batches_that_stepped", trainer.global_step))


class _LightningMeter(EnergyMeter):
    """Reports to the trainer's loggers where it has any, so that nothing is reported twice."""

    def __init__(self, own: tuple[EnergyLogger, ...], **options: Any) -> None:
        super().__init__(**options)
        self._own = own

    def reporting(self) -> list[EnergyLogger]:
        return [*self.loggers, *self._own] if self._own else super().reporting()
