"""A training with GreenScreen's ten parameters in plain PyTorch, for many short runs on a GPU.

The parameters mean what they mean in `examples/greenscreen/train.py`, which trains a smaller
network in Keras; data, partitioning, scaling and augmentation are those of that example. Here all
runs stay in one process, so a run begins with its first step and not with the start of Keras.
"""

import argparse
import functools
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the name that PyTorch's own documents use

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "greenscreen"
sys.path.insert(0, str(EXAMPLE))

from images import CLASSES, batches, digits, split  # noqa: E402 - found after the path is set
from train import DECAY_STEPS, arguments  # noqa: E402 - the same

__all__ = ["LEAST_S", "ResNet", "Training", "restored", "rounded", "scheduled"]

IMAGES = 1797
LEVELS = 127
"""Of eight bits with a sign, symmetric about zero."""
EPSILON = 1e-7
"""Of optimizers and of quantisation steps, as Keras has it."""
LOWEST_RATE = 1e-4
"""The end of a polynomial decay, as Keras has it."""
WEIGHT_DECAY = 0.004
"""Of AdamW, as Keras has it."""
FIRST_SCALE = 2.0**15
"""Of the loss in mixed precision, as Keras has it."""
LEAST_S = 2.0
"""A training that is shorter is repeated from its beginning, until both together take so long."""
TYPES = {
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
    "global_policy_float16": torch.float32,
}
"""Of weights and data; the global policy computes in float16 where PyTorch's autocast does."""


def rounded(x: torch.Tensor, axes: tuple[int, ...]) -> torch.Tensor:
    """Round `x` to the levels of eight bits; gradients pass unchanged (straight through)."""
    scale = (x.detach().abs().amax(dim=axes, keepdim=True) / LEVELS).clamp_min(1e-6)
    return x + ((x / scale).round() * scale - x).detach()


class QuantizedConv2d(nn.Conv2d):
    """Weights (per output channel) and inputs in eight bits in every forward pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = rounded(self.weight, (1, 2, 3))
        return self._conv_forward(rounded(x, (0, 1, 2, 3)), weight, self.bias)


class QuantizedLinear(nn.Linear):
    """Weights (per output) and inputs in eight bits in every forward pass."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(rounded(x, (0, 1)), rounded(self.weight, (1,)), self.bias)


class Block(nn.Module):
    """Two convolutions and their residual (He et al., 2016)."""

    def __init__(self, conv: type[nn.Conv2d], before: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = conv(before, width, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(width)
        self.second = conv(width, width, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(width)
        same = before == width and stride == 1
        self.skip = (
            nn.Identity()
            if same
            else nn.Sequential(conv(before, width, 1, stride, bias=False), nn.BatchNorm2d(width))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(y)) + self.skip(x))


class ResNet(nn.Module):
    """A stem, a residual block per width, and a linear layer, for images of 32 x 32."""

    def __init__(self, widths: tuple[int, ...], *, quantized: bool = False) -> None:
        super().__init__()
        conv = QuantizedConv2d if quantized else nn.Conv2d
        linear = QuantizedLinear if quantized else nn.Linear
        self.stem = conv(1, widths[0], 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(widths[0])
        pairs = zip((widths[0], *widths), widths, strict=False)
        blocks = [Block(conv, a, b, 1 if n == 0 else 2) for n, (a, b) in enumerate(pairs)]
        self.blocks = nn.Sequential(*blocks)
        self.last = linear(widths[-1], CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(F.relu(self.norm(self.stem(x))))
        return self.last(x.mean((2, 3)))


@functools.cache
def network(
    widths: tuple[int, ...], precision: str, internal: str, device: str
) -> tuple[ResNet, Callable[[torch.Tensor], torch.Tensor], Mapping[str, torch.Tensor]]:
    """Return the network, its compiled training step, and its first weights.

    One network serves all runs of a kind, so that a pass is compiled once per precision, for any
    batch size, and not in every run that asks for it.
    """
    torch.manual_seed(0)
    model = ResNet(widths, quantized=internal == "pre_quantization")
    model.to(device=device, dtype=TYPES[precision])
    first = {name: value.clone() for name, value in model.state_dict().items()}
    compiled = internal == "jit_compilation"
    if compiled:  # each precision is a compilation of the same code
        torch._dynamo.config.recompile_limit = 32
    return model, torch.compile(model) if compiled else model, first


def restored(model: nn.Module, first: Mapping[str, torch.Tensor]) -> None:
    """Restore the first weights, and drop the gradients."""
    model.load_state_dict(first)
    model.zero_grad(set_to_none=True)


def scheduled(kind: str, rate: float, step: int) -> float:
    """Return the learning rate of a step, by the formulas of Keras's schedules."""
    part = min(step, DECAY_STEPS) / DECAY_STEPS
    return {
        "constant": lambda: rate,
        "exponential": lambda: rate * 0.96 ** (step / DECAY_STEPS),
        "polynomial": lambda: (rate - LOWEST_RATE) * (1 - part) + LOWEST_RATE,
        "cosine": lambda: rate * 0.5 * (1 + math.cos(math.pi * part)),
    }[kind]()


def optimizer(args: argparse.Namespace, model: nn.Module) -> torch.optim.Optimizer:
    momentum, weights = args.optimizer_momentum, model.parameters()
    if args.optimizer == "SGD":
        return torch.optim.SGD(weights, args.lr, momentum=momentum)
    if args.optimizer == "RMSProp":
        options = {"alpha": 0.9, "eps": EPSILON, "momentum": momentum}
        return torch.optim.RMSprop(weights, args.lr, **options)
    betas = (momentum, 0.999)
    if args.optimizer == "Adam":
        return torch.optim.Adam(weights, args.lr, betas, EPSILON)
    return torch.optim.AdamW(weights, args.lr, betas, EPSILON, WEIGHT_DECAY)


class Training:
    """One configuration: set-up, repeated training, evaluation.

    Args:
        chosen: the ten parameters by name.
    """

    def __init__(
        self, chosen: Mapping[str, Any], *, widths: tuple[int, ...], device: str, images: int
    ) -> None:
        words = [word for name, value in chosen.items() for word in (f"--{name}", str(value))]
        self.args = args = arguments().parse_args(words)
        self.device, self._mixed = device, args.precision == "global_policy_float16"
        found = network(widths, args.precision, args.internal, device)
        self.model, self._compute, self._first = found
        parts = split(*digits(images), args.partitioning, args.preprocessing, args.seed)
        of_type = {torch.float16: "float16", torch.float32: "float32", torch.float64: "float64"}
        data_type = of_type[TYPES[args.precision]]
        self._train, self._validation, self._test = (
            (part[0].astype(data_type), part[1].astype(data_type))
            for part in (parts.train, parts.validation, parts.test)
        )
        self.restart()

    def restart(self) -> None:
        """Return to the first weights, the first order of the data and a new optimizer."""
        restored(self.model, self._first)
        self._optimizer = optimizer(self.args, self.model)
        self._scaler = torch.amp.GradScaler(self.device, FIRST_SCALE, enabled=self._mixed)
        self._rng = np.random.default_rng(self.args.seed)
        self._steps = 0

    def warm_up(self) -> None:
        """Compile, and let libraries choose their algorithms, for each batch size that occurs."""
        size = self.args.batch_size
        rest = len(self._train[0]) % size
        for count in filter(None, (size, rest)):
            few = (self._train[0][:count], self._train[1][:count])
            for _ in range(2):
                self._epoch_of(batches(few, count, self.args.augmentation, self._rng))
        self.restart()

    def epoch(self) -> dict[str, float]:
        """Train an epoch; return loss and accuracy of the training part."""
        args = self.args
        return self._epoch_of(batches(self._train, args.batch_size, args.augmentation, self._rng))

    def _epoch_of(self, made: Iterator[tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
        self.model.train()
        loss_sum = torch.zeros((), device=self.device, dtype=torch.float64)
        right = torch.zeros((), device=self.device, dtype=torch.int64)
        count = 0
        for images, labels in made:
            x, y = self._on_device(images, labels)
            for group in self._optimizer.param_groups:
                group["lr"] = scheduled(self.args.lr_schedule, self.args.lr, self._steps)
            compute = self.model
            if len(x) > 1:  # torch would compile once more for a batch of one image
                torch._dynamo.maybe_mark_dynamic(x, 0)
                compute = self._compute
            with torch.autocast(self.device, torch.float16, enabled=self._mixed):
                logits = compute(x)
            loss = _loss(logits, y)
            self._optimizer.zero_grad(set_to_none=True)
            self._scaler.scale(loss).backward()
            self._scaler.step(self._optimizer)
            self._scaler.update()
            self._steps += 1
            loss_sum += loss.detach().double() * len(x)
            right += (logits.detach().argmax(1) == y.argmax(1)).sum()
            count += len(x)
        return {"loss": float(loss_sum) / count, "accuracy": float(right) / count}

    def validate(self) -> dict[str, float]:
        return self._judged(self._validation, "val_")

    def test(self) -> dict[str, float]:
        return self._judged(self._test, "test_")

    @torch.no_grad()
    def _judged(self, part: tuple[np.ndarray, np.ndarray], prefix: str) -> dict[str, float]:
        self.model.eval()
        loss_sum = torch.zeros((), device=self.device, dtype=torch.float64)
        right = torch.zeros((), device=self.device, dtype=torch.int64)
        size = self.args.batch_size
        for begin in range(0, len(part[0]), size):
            x, y = self._on_device(part[0][begin : begin + size], part[1][begin : begin + size])
            with torch.autocast(self.device, torch.float16, enabled=self._mixed):
                logits = self.model(x)
            loss_sum += _loss(logits, y).double() * len(x)
            right += (logits.argmax(1) == y.argmax(1)).sum()
        count = len(part[0])
        return {f"{prefix}loss": float(loss_sum) / count, f"{prefix}accuracy": float(right) / count}

    def _on_device(
        self, images: np.ndarray, labels: np.ndarray
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.from_numpy(np.ascontiguousarray(images[..., 0][:, None]))
        return x.to(self.device), torch.from_numpy(labels).to(self.device)

    @torch.no_grad()
    def quantize_weights(self) -> None:
        """Round every kernel to the levels of eight bits."""
        for weight in self._kernels():
            weight.copy_(rounded(weight, tuple(range(1, weight.ndim))))

    def _kernels(self) -> list[nn.Parameter]:
        return [m.weight for m in self.model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]

    def weight_bytes(self) -> int:
        """Return the size of the stored weights: kernels in eight bits where quantised."""
        quantized = self.args.internal.endswith("quantization")
        eight_bits = {id(weight) for weight in self._kernels()} if quantized else set()
        return sum(
            weight.numel() * (1 if id(weight) in eight_bits else weight.element_size())
            for weight in self.model.parameters()
        )


def _loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy, in float32 where the network is in float16."""
    wide = torch.float32 if logits.dtype is torch.float16 else logits.dtype
    return F.cross_entropy(logits.to(wide), labels.to(wide))


def trained(
    trial: Any, training: Training, *, epochs: int, counter_j: Callable[[], float | None]
) -> None:
    """Train under a search; the report of epoch 0 is of the network after set-up.

    The time before that report is the set-up, which compiles. A training of less than `LEAST_S`
    is repeated from its beginning with the same seed, because the energy counter of a GPU is only
    updated ten times a second: the energy of an epoch is a mean over all repetitions.
    """
    began_s = time.monotonic()
    training.warm_up()
    trial.report(epoch=0, setup_s=time.monotonic() - began_s, **training.validate())
    before_j, begin_s, trainings = counter_j(), time.monotonic(), 0
    while trainings == 0 or time.monotonic() - begin_s < LEAST_S:
        if trainings:
            training.restart()
        for epoch in range(1, epochs + 1):
            seen = training.epoch()
            if epoch == epochs and training.args.internal == "post_quantization":
                training.quantize_weights()
            trial.report(epoch=trainings * epochs + epoch, **seen, **training.validate())
        trainings += 1
    after_j, window_s = counter_j(), time.monotonic() - begin_s
    known = None not in (before_j, after_j)
    trial.report(
        trainings=trainings,
        window_s=window_s,
        counter_j=after_j - before_j if known else None,
        weight_bytes=training.weight_bytes(),
        **training.test(),
    )
