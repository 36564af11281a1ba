from typing import Any

import pytest

from tests.integrations.conftest import Machine
from tests.support.libraries import library
from wattloop.core.results import RunStatus

library("torch", reason="the test runs Keras on PyTorch, which is not installed")
keras = library("keras", reason="Keras is not installed")
numpy = library("numpy", reason="NumPy is not installed")
measured = library("wattloop.integrations.keras_callback", reason="")


def fitted(callbacks: list[Any]) -> Any:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(3, activation="softmax")])
    model.compile(optimizer="sgd", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    x, y = numpy.random.rand(32, 4), numpy.arange(32) % 3
    model.fit(x, y, batch_size=8, epochs=2, verbose=0, validation_split=0.25, callbacks=callbacks)
    return model


def test_fit_is_measured_and_not_changed(machine: Machine) -> None:
    """Promise: steps and epochs have losses and metrics, and the model learns the same."""
    plain = fitted([])
    energy = measured.EnergyCallback()
    watched = fitted([energy])
    meter = energy.meter
    assert meter.fault is None
    assert [e.steps for e in meter.epochs] == [3, 3]
    assert all(s.loss is not None for s in meter.steps)
    assert {"loss", "accuracy", "val_loss"} <= set(meter.epochs[1].metrics)
    assert all(e.energy_j and e.energy_j > 0 for e in meter.epochs)
    for before, after in zip(plain.get_weights(), watched.get_weights(), strict=True):
        assert numpy.array_equal(before, after)


def test_a_training_that_broke_off_is_ended_by_the_next(machine: Machine) -> None:
    """Promise: after ctrl-C in a notebook, `fit` again is a run of its own, not a part."""

    class Interrupting(keras.callbacks.Callback):  # type: ignore[name-defined,misc] # found late
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            raise KeyboardInterrupt

    energy = measured.EnergyCallback()
    with pytest.raises(KeyboardInterrupt):
        fitted([energy, Interrupting()])
    broken = energy.meter
    fitted([energy])
    assert broken.run is not None
    assert broken.run.status is RunStatus.FAILED
    assert energy.meter.run is not None
    assert energy.meter.run.run_id != broken.run.run_id
