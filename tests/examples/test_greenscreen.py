"""Promises of examples/greenscreen: each of the ten parameters has the effect of its name."""

import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.libraries import library

FOLDER = Path(__file__).parents[2] / "examples" / "greenscreen"

library("keras", reason="Keras is not installed")
library("torch", reason="PyTorch is not installed")
library("sklearn", reason="scikit-learn is not installed")


@pytest.fixture(autouse=True)
def on_the_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Import its files as `train.py` does, and restore Keras's settings."""
    monkeypatch.syspath_prepend(str(FOLDER))
    from network import keras

    policy = keras.config.dtype_policy()
    yield
    keras.config.set_dtype_policy(policy)
    for name in ("images", "network", "train"):
        sys.modules.pop(name, None)


def arguments(**changed: Any) -> Namespace:
    import train

    words = [word for name, value in changed.items() for word in (f"--{name}", str(value))]
    return train.arguments().parse_args(words)


def trained(**changed: Any) -> list[dict[str, float]]:
    """Train on a few images and return the output."""
    import train

    lines = train.trained(arguments(**{"images": 50, "epochs": 1, "batch_size": 20} | changed))
    return [
        {name: float(value) for name, value in (pair.split("=") for pair in line.split())}
        for line in lines
    ]


def parts(scaling: str = "none", partitioning: str = "80-10-10") -> Any:
    from images import digits, split

    return split(*digits(200), partitioning, scaling, seed=0)


def test_it_reports_every_epoch_and_the_test_part() -> None:
    """A line per epoch with the metric that the search reads, then one for the test part."""
    first, second, last = trained(epochs=2)
    assert (first["epoch"], second["epoch"]) == (1, 2)
    assert {"loss", "accuracy", "val_loss", "val_accuracy"} < set(first)
    assert {"epoch", "test_loss", "test_accuracy", "weight_bytes"} == set(last)
    assert last["epoch"] == 2  # not another epoch
    assert second["loss"] < first["loss"]


def test_the_same_seed_gives_the_same_training() -> None:
    """Runs differ by their parameters only."""
    assert trained(seed=3) == trained(seed=3)
    assert trained(seed=3) != trained(seed=4)


def test_preprocessing_scales_by_the_training_part() -> None:
    """Each of the four, with statistics of the training part only."""
    plain = parts("none").train[0]
    assert (plain.min(), plain.max()) == (0, 255)
    standard = parts("standardization")
    assert abs(standard.train[0].mean()) < 1e-9
    assert standard.train[0].std() == pytest.approx(1)
    assert abs(standard.test[0].mean()) > 1e-6
    robust = parts("robust_scaling").train[0]
    assert np.median(robust) == 0
    assert np.subtract(*np.percentile(robust, (75, 25))) == pytest.approx(1)
    scaled = parts("minmax").train[0]
    assert (scaled.min(), scaled.max()) == (0, 1)


def test_augmentation_changes_images_and_labels() -> None:
    """Random moves images, MixUp blends them, CutMix pastes; the last two mix labels too."""
    from images import batches

    images, labels = parts("minmax").train
    made = {
        name: next(batches((images, labels), 64, name, np.random.default_rng(0)))
        for name in ("none", "random", "mixup", "cutmix")
    }
    plain, targets = made["none"]
    assert set(np.unique(targets)) == {0, 1}
    assert np.isin(plain[:, 16, 16, 0], images[:, 16, 16, 0]).all()
    for name in ("random", "mixup", "cutmix"):
        assert not np.array_equal(made[name][0], plain)
    assert np.array_equal(made["random"][1], targets)
    for name in ("mixup", "cutmix"):
        mixed = made[name][1]
        assert np.allclose(mixed.sum(axis=1), 1)
        assert ((mixed > 0) & (mixed < 1)).any()
    # a pasted pixel is a pixel of some image, a blended one need not be
    assert np.isin(made["cutmix"][0], images).all()
    assert not np.isin(made["mixup"][0], images).all()


@pytest.mark.parametrize(
    ("precision", "data", "compute", "weights"),
    [
        ("float16", "float16", "float16", "float16"),
        ("float32", "float32", "float32", "float32"),
        ("float64", "float64", "float64", "float64"),
        ("global_policy_float16", "float16", "float16", "float32"),
    ],
)
def test_precision_is_that_of_data_and_arithmetic(
    precision: str, data: str, compute: str, weights: str
) -> None:
    """Data, arithmetic and weights have the type; the global policy keeps float32 weights."""
    import train

    model, data_type = train.built(arguments(precision=precision))
    assert data_type == data
    assert {layer.compute_dtype for layer in model.layers[1:-1]} == {compute}
    assert {str(weight.dtype) for weight in model.trainable_weights} == {weights}
    assert trained(precision=precision)[0]["val_loss"] > 0


def test_batch_size_and_partitioning_decide_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of an epoch are the images of the training part over the batch size."""
    import train

    steps = []
    real = train.epoch_of

    def counted(made: Iterator[Any]) -> Any:
        epoch = real(made)
        steps.append(len(epoch))
        return epoch

    monkeypatch.setattr(train, "epoch_of", counted)
    trained(batch_size=32, partitioning="60-20-20")
    trained(batch_size=4, partitioning="60-20-20")
    trained(batch_size=32, partitioning="90-5-5")
    assert steps == [1, 8, 2]
    sizes = {p: [len(x) for x, _ in vars(parts("none", p)).values()] for p in PARTITIONS}
    assert sizes == PARTITIONS


PARTITIONS = {
    "60-20-20": [120, 40, 40],
    "70-15-15": [140, 30, 30],
    "80-10-10": [160, 20, 20],
    "90-5-5": [180, 10, 10],
}


def test_learning_rate_and_schedule_decide_the_rate_of_a_step() -> None:
    """Each schedule begins at the rate, and has the expected value after 500 of its 1000 steps."""
    import train

    def rate(schedule: str, step: int) -> float:
        made = train.optimizer(arguments(lr=0.01, lr_schedule=schedule))
        made.iterations.assign(step)
        return float(made.learning_rate)

    half = {"constant": 0.01, "exponential": 0.01 * 0.96**0.5, "cosine": 0.005}
    half["polynomial"] = (0.01 - 0.0001) * 0.5 + 0.0001
    for schedule, due in half.items():
        assert rate(schedule, 0) == pytest.approx(0.01)
        assert rate(schedule, 500) == pytest.approx(due, rel=1e-4)
    assert float(train.optimizer(arguments(lr=1.5e-4)).learning_rate) == pytest.approx(1.5e-4)


@pytest.mark.parametrize(
    ("name", "where"),
    [("RMSProp", "momentum"), ("SGD", "momentum"), ("Adam", "beta_1"), ("AdamW", "beta_1")],
)
def test_optimizer_and_momentum(name: str, where: str) -> None:
    """The optimizer is the requested one, with the momentum where it supports it."""
    import train

    for momentum in (0.0, 0.5, 0.99):
        made = train.optimizer(arguments(optimizer=name, optimizer_momentum=momentum))
        assert type(made).__name__.lower() == name.lower()
        assert made.get_config()[where] == momentum
    still, moving = (trained(optimizer=name, optimizer_momentum=m, lr=1e-3) for m in (0, 0.9))
    assert still[0]["val_loss"] != moving[0]["val_loss"]


def test_pre_quantization_trains_with_eight_bits() -> None:
    """Convolutions see at most 255 levels of weights and inputs, and gradients still flow."""
    import train
    from network import QuantizedConv2D, keras, kernels, rounded

    model, _ = train.built(arguments(internal="pre_quantization"))
    convolutions = [layer for layer in model.layers if isinstance(layer, keras.layers.Conv2D)]
    assert all(isinstance(layer, QuantizedConv2D) for layer in convolutions)
    values = keras.ops.convert_to_tensor(np.random.default_rng(0).normal(size=(9, 1000)))
    assert len(np.unique(keras.ops.convert_to_numpy(rounded(values, axis=(0, 1))))) <= 255
    before = [keras.ops.convert_to_numpy(k).copy() for k in kernels(model)]
    images, labels = parts("minmax").train
    model.train_on_batch(images[:8], labels[:8])
    for kernel, old in zip(kernels(model), before, strict=True):
        assert not np.array_equal(keras.ops.convert_to_numpy(kernel), old)
    assert trained(internal="pre_quantization")[0]["loss"] != trained()[0]["loss"]


def test_post_quantization_quantises_the_trained_weights() -> None:
    """The same training, then kernels on 255 levels per channel, near where they were."""
    import train
    from network import keras, kernels, quantize_weights

    plain, quantized = trained(), trained(internal="post_quantization")
    assert plain[0] == quantized[0]
    assert quantized[-1]["weight_bytes"] < 0.3 * plain[-1]["weight_bytes"]
    assert quantized[-1]["val_loss"] != plain[0]["val_loss"]
    model, _ = train.built(arguments())
    before = [keras.ops.convert_to_numpy(k).copy() for k in kernels(model)]
    stored = quantize_weights(model)
    for kernel, old in zip(kernels(model), before, strict=True):
        integers, scale = stored[kernel.path]
        assert integers.dtype == np.int8
        now = keras.ops.convert_to_numpy(kernel)
        assert np.allclose(now, integers * scale, atol=1e-7)
        assert np.abs(now - old).max() <= scale.max() / 2 + 1e-7
        assert not np.array_equal(now, old)


def test_jit_compilation_trains_the_same_in_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Full batches go through the compiled graph, with the same loss and batch statistics."""
    import network
    from network import CompiledModel, keras

    assert CompiledModel.backend == "inductor"
    # traced and differentiated as for inductor, without waiting a minute for its C++
    monkeypatch.setattr(CompiledModel, "backend", "aot_eager")
    images, labels = parts("minmax").train
    losses = {}
    for internal in ("none", "jit_compilation"):
        keras.utils.set_random_seed(0)
        model = network.network(32, 10, internal=internal, widths=(4,))
        model.compile(keras.optimizers.SGD(0.1), "categorical_crossentropy", jit_compile=False)
        batch = (images[:16].astype("float32"), labels[:16].astype("float32"))
        seen = [float(model.train_on_batch(*batch)) for _ in range(3)]
        losses[internal] = [*seen, float(model.evaluate(*batch, verbose=0))]
        assert (internal == "jit_compilation") == isinstance(model, CompiledModel)
    assert losses["jit_compilation"] == pytest.approx(losses["none"], rel=1e-4)
    assert model.graph_shape == (16, 32, 32, 1)
    calls = []
    compiled = model.graph
    model.graph = lambda *tensors: calls.append(1) or compiled(*tensors)
    model.train_on_batch(images[:16], labels[:16])
    model.train_on_batch(images[:5], labels[:5])
    assert calls == [1]


def test_a_refusal_of_torch_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A combination that this machine cannot train ends with a sentence, not a traceback."""
    import train

    def refused(args: Namespace) -> Iterator[str]:
        yield "epoch=1"
        raise RuntimeError("no C++ compiler\nlong story")

    monkeypatch.setattr(train, "trained", refused)
    assert train.main(["--internal", "jit_compilation"]) == 1
    told = capsys.readouterr().err
    assert told == "--internal jit_compilation with --precision float32: no C++ compiler\n"
