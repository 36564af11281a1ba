"""Keras 3, on any backend.

from wattloop.integrations.keras_callback import EnergyCallback

energy = EnergyCallback()
model.fit(x, y, callbacks=[energy])
print(energy.meter.last_epoch.energy_j)
"""

from __future__ import annotations

from typing import Any

from keras.callbacks import Callback

from wattloop.core.results import RunStatus
from wattloop.integrations.torch_loop import EnergyMeter


class EnergyCallback(Callback):  # type: ignore[misc] # keras is not typed here
    """Measures `fit` per batch and epoch.

    On the torch backend the edges of steps lie on the GPU's time line; on the others they are
    times of the host.

    Args:
        options: what `EnergyMeter` takes.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._options = options
        self.meter = EnergyMeter(**options)

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin; a second `fit` is a run of its own."""
        if self.meter.result is not None:
            self.meter.end(RunStatus.FAILED)  # one that broke off; what has ended stays as it is
            self.meter = EnergyMeter(**self._options)
        self.meter.begin()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.meter.epoch_begin(epoch)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.meter.step_begin()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.meter.step_end((logs or {}).get("loss"))

    def on_test_begin(self, logs: Any = None) -> None:
        """Validation belongs to no step."""
        self.meter.interrupt()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """An epoch has ended, its validation included."""
        self.meter.epoch_end(**(logs or {}))

    def on_train_end(self, logs: Any = None) -> None:
        self.meter.end()
