"""Callback for Lightning, installed as `lightning` or as `pytorch_lightning`.

from wattloop.tune.callbacks.lightning import TuneCallback

def train(trial):
    Trainer(max_epochs=20, callbacks=[TuneCallback(trial)]).fit(Model(trial["lr"]), data)

The search's metric is one that the model logs, such as `self.log("val_accuracy", ...)`.
"""

from typing import Any

from wattloop.integrations.lightning import callback_class
from wattloop.tune.trial import Trial, current_trial


class TuneCallback(callback_class()):  # type: ignore[misc] # the base is chosen when imported
    """Reports every epoch of `fit` to `trial`, or to `current_trial()`."""

    def __init__(self, trial: Trial | None = None) -> None:
        super().__init__()
        self.trial = current_trial() if trial is None else trial

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        steps = trainer.num_training_batches
        if isinstance(steps, int) and steps > 0:
            self.trial.expect_steps(float(steps))

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.trial.step()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.is_global_zero:
            self.trial.report(epoch=trainer.current_epoch + 1, **trainer.callback_metrics)
