"""Keras on its torch backend."""

from tests.support.libraries import library

library("torch", reason="the test runs Keras on PyTorch, which is not installed")
keras = library("keras", reason="Keras is not installed")
numpy = library("numpy", reason="NumPy is not installed")


def test_every_epoch_is_reported_with_its_validation(trial):
    """Promise: Keras's own names, epochs from 1, steps counted and expected."""
    from wattloop.tune.callbacks.keras import TuneCallback

    model = keras.Sequential([keras.layers.Dense(3, activation="softmax")])
    model.compile(optimizer="sgd", loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    x, y = numpy.random.rand(32, 4), numpy.arange(32) % 3
    options = {"batch_size": 8, "epochs": 2, "verbose": 0, "validation_split": 0.25}
    model.fit(x, y, callbacks=[TuneCallback(trial)], **options)
    assert [epoch for epoch, _ in trial.reports] == [1, 2]
    assert {"loss", "accuracy", "val_loss", "val_accuracy"} <= set(trial.reports[0][1])
    assert trial.steps_seen == 6
    assert trial.expected == 3
