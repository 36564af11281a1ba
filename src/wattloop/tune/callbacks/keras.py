"""Callback for Keras 3, on any backend.

from wattloop.tune.callbacks.keras import TuneCallback

def train(trial):
    model = build(trial["width"])
    model.fit(x, y, validation_split=0.2, epochs=20, callbacks=[TuneCallback(trial)])

The search's metric is one of Keras's names, such as `val_accuracy`.
"""

from typing import Any

from keras.callbacks import Callback

from wattloop.tune.trial import Trial, current_trial


class TuneCallback(Callback):  # type: ignore[misc] # keras is not typed here
    """Reports every epoch of `fit` to `trial`, or to `current_trial()`."""

    def __init__(self, trial: Trial | None = None) -> None:
        super().__init__()
        self.trial = current_trial() if trial is None else trial

    def on_train_begin(self, logs: Any = None) -> None:
        steps = (self.params or {}).get("steps")
        if steps:
            self.trial.expect_steps(float(steps))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.trial.step()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.trial.report(epoch=epoch + 1, **(logs or {}))
