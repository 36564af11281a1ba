"""Train a small ResNet on digits under the ten parameters of GreenScreen (section 2.5).

    python examples/greenscreen/train.py --batch_size 32 --optimizer Adam --epochs 3

Prints the metrics of every epoch as `name=value`, the form that `wattloop tune` reads. Needs
Keras, PyTorch and scikit-learn; `README.md` describes each parameter.
"""

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import keras

INTERNAL = ("none", "pre_quantization", "post_quantization", "jit_compilation")
PRECISIONS = ("float16", "float32", "float64", "global_policy_float16")
SCHEDULES = ("constant", "exponential", "polynomial", "cosine")
OPTIMIZERS = ("RMSProp", "SGD", "Adam", "AdamW")
DECAY_STEPS = 1000


def main(words: list[str] | None = None) -> int:
    args = arguments().parse_args(words)
    try:
        import network  # noqa: F401 - asked for here, so that its absence is said in a sentence
        import sklearn  # noqa: F401 - the same
    except ImportError as error:
        print(f"{error}; run 'pip install keras torch scikit-learn'", file=sys.stderr)
        return 1
    try:
        for text in trained(args):
            print(text, flush=True)
    except RuntimeError as error:  # errors of torch, a missing C++ compiler among them
        words = str(error).strip().splitlines() or [type(error).__name__]
        print(f"--internal {args.internal} with --precision {args.precision}: {words[0]}",
              file=sys.stderr)  # fmt: skip
        return 1
    return 0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--preprocessing", default="minmax", help="none, standardization, robust_scaling, minmax")
    add("--augmentation", default="none", help="none, random, mixup, cutmix")
    add("--precision", default="float32", choices=PRECISIONS)
    add("--batch_size", type=int, default=32)
    add("--partitioning", default="80-10-10", help="per cent: training-validation-test")
    add("--lr", type=float, default=0.01)
    add("--lr_schedule", default="constant", choices=SCHEDULES)
    add("--optimizer", default="SGD", choices=OPTIMIZERS)
    add("--optimizer_momentum", type=float, default=0.9, help="beta 1 of Adam and AdamW")
    add("--internal", default="none", choices=INTERNAL)
    add("--epochs", type=int, default=50)
    add("--images", type=int, default=1797, help="how many, of all parts together")
    add("--seed", type=int, default=0)
    add("--threads", type=int, default=1, help="for images this small, more wait for each other")
    return parser


def trained(args: argparse.Namespace) -> Iterator[str]:
    """Train; print a line per epoch and one at the end."""
    import numpy as np
    import torch
    from images import batches, digits, split
    from network import keras, quantize_weights

    torch.set_num_threads(args.threads)
    keras.utils.set_random_seed(args.seed)
    rng = np.random.default_rng(args.seed)
    parts = split(*digits(args.images), args.partitioning, args.preprocessing, args.seed)
    model, data_type = built(args)
    train, validation, test = (
        (images.astype(data_type), labels.astype(data_type))
        for images, labels in (parts.train, parts.validation, parts.test)
    )
    for epoch in range(1, args.epochs + 1):
        seen = model.fit(
            epoch_of(batches(train, args.batch_size, args.augmentation, rng)),
            validation_data=validation,
            validation_batch_size=args.batch_size,
            shuffle=False,  # they are
            verbose=0,
        ).history
        yield f"epoch={epoch} " + line({name: values[0] for name, values in seen.items()})
    last = {}
    if args.internal == "post_quantization":
        quantize_weights(model)
        last |= judged(model, validation, args.batch_size, "val_")
    last |= judged(model, test, args.batch_size, "test_")
    last |= {"weight_bytes": weight_bytes(model, args.internal)}
    yield f"epoch={args.epochs} {line(last)}"  # the same epoch: no training since


def epoch_of(made: Iterator[tuple]) -> "keras.utils.PyDataset":
    """Return batches in a form that Keras can count."""
    from network import keras

    listed = list(made)

    class Epoch(keras.utils.PyDataset):
        def __len__(self) -> int:
            return len(listed)

        def __getitem__(self, index: int) -> tuple:
            return listed[index]

    return Epoch()


def built(args: argparse.Namespace) -> tuple["keras.Model", str]:
    """Return the compiled model, and the type of its data."""
    from images import CLASSES, SIDE
    from network import keras, network

    policy = "mixed_float16" if args.precision == "global_policy_float16" else args.precision
    keras.config.set_dtype_policy(policy)
    model = network(SIDE, CLASSES, internal=args.internal)
    model.compile(
        optimizer=optimizer(args),
        loss="categorical_crossentropy",
        metrics=["accuracy"],
        jit_compile=False,  # `CompiledModel` compiles by itself
    )
    return model, "float16" if policy == "mixed_float16" else policy


def optimizer(args: argparse.Namespace) -> "keras.optimizers.Optimizer":
    """Build the optimizer of `--optimizer`, `--optimizer_momentum`, `--lr` and `--lr_schedule`."""
    from network import keras

    decays = keras.optimizers.schedules
    schedule = {
        "constant": lambda rate: rate,
        "exponential": lambda rate: decays.ExponentialDecay(rate, DECAY_STEPS, decay_rate=0.96),
        "polynomial": lambda rate: decays.PolynomialDecay(rate, DECAY_STEPS),
        "cosine": lambda rate: decays.CosineDecay(rate, DECAY_STEPS),
    }[args.lr_schedule]
    rate, momentum = schedule(args.lr), args.optimizer_momentum
    if args.optimizer == "SGD":
        return keras.optimizers.SGD(rate, momentum=momentum)
    if args.optimizer == "RMSProp":
        return keras.optimizers.RMSprop(rate, momentum=momentum)
    adam = {"Adam": keras.optimizers.Adam, "AdamW": keras.optimizers.AdamW}[args.optimizer]
    return adam(rate, beta_1=momentum)


def judged(model: "keras.Model", part: tuple, batch_size: int, prefix: str) -> dict[str, float]:
    found = model.evaluate(*part, batch_size=batch_size, verbose=0, return_dict=True)
    return {f"{prefix}{name}": value for name, value in found.items()}


def weight_bytes(model: "keras.Model", internal: str) -> int:
    """Return the size of the stored weights: kernels in eight bits where quantised."""
    from network import kernels

    eight_bits = {id(k) for k in kernels(model)} if internal.endswith("quantization") else set()
    return sum(
        weight.value.numel() * (1 if id(weight) in eight_bits else weight.value.element_size())
        for weight in model.weights
    )


def line(metrics: dict[str, float]) -> str:
    return " ".join(f"{name}={value:.6g}" for name, value in metrics.items())


if __name__ == "__main__":
    sys.exit(main())
