"""Networks of ElasticFlow's table, rebuilt: what one GPU does for a batch of so many samples.

The table names networks only. Sizes of inputs are those of their usual data sets (ImageNet,
LibriSpeech, sentences of 128 tokens), stated here; times are never taken from them alone, only how
times change with the batch.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from predict_nets import resnet50, vgg16
from wattloop.predict.workload.trace import trace
from wattloop.predict.workload.workload import Workload

__all__ = ["BUILDERS", "traced"]

Tensor = Any
TOKENS = 128


def traced(name: str, batch: int) -> Workload:
    """One step of a network with `batch` samples, TF32 as A100s train by default."""
    build, inputs, optimizer = BUILDERS[name]
    return trace(build, inputs(batch), precision="tf32", optimizer=optimizer, name=name)


class Inception3(nn.Module):
    """Inception v3 (Szegedy et al., 2015), with the auxiliary output that training has."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            _conv(3, 32, 3, stride=2), _conv(32, 32, 3), _conv(32, 64, 3, padding=1),
            nn.MaxPool2d(3, 2), _conv(64, 80, 1), _conv(80, 192, 3), nn.MaxPool2d(3, 2),
            _a(192, 32), _a(256, 64), _a(288, 64), _b(288),
            _c(768, 128), _c(768, 160), _c(768, 160), _c(768, 192),
        )  # fmt: skip
        self.auxiliary = nn.Sequential(
            nn.AvgPool2d(5, 3), _conv(768, 128, 1), _conv(128, 768, 5),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(768, classes),
        )  # fmt: skip
        self.rest = nn.Sequential(
            _d(768), _e(1280), _e(2048),
            nn.AdaptiveAvgPool2d(1), nn.Dropout(), nn.Flatten(), nn.Linear(2048, classes),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.rest(x) + 0.4 * self.auxiliary(x)


class Branches(nn.Module):
    """Branches whose outputs stand side by side."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def _conv(
    c_in: int, c_out: int, kernel: int | tuple[int, int], stride: int = 1, padding: Any = 0
) -> nn.Module:
    conv = nn.Conv2d(c_in, c_out, kernel, stride, padding, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(c_out), nn.ReLU(inplace=True))


def _wide(c_in: int, c_out: int, k: int) -> nn.Module:
    return _conv(c_in, c_out, (1, k), padding=(0, k // 2))


def _tall(c_in: int, c_out: int, k: int) -> nn.Module:
    return _conv(c_in, c_out, (k, 1), padding=(k // 2, 0))


def _pooled(c_in: int, c_out: int) -> nn.Module:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), _conv(c_in, c_out, 1))


def _a(c_in: int, pooled: int) -> nn.Module:
    return Branches(
        _conv(c_in, 64, 1),
        nn.Sequential(_conv(c_in, 48, 1), _conv(48, 64, 5, padding=2)),
        nn.Sequential(_conv(c_in, 64, 1), _conv(64, 96, 3, padding=1), _conv(96, 96, 3, padding=1)),
        _pooled(c_in, pooled),
    )


def _b(c_in: int) -> nn.Module:
    return Branches(
        _conv(c_in, 384, 3, stride=2),
        nn.Sequential(_conv(c_in, 64, 1), _conv(64, 96, 3, padding=1), _conv(96, 96, 3, stride=2)),
        nn.MaxPool2d(3, 2),
    )


def _c(c_in: int, c: int) -> nn.Module:
    return Branches(
        _conv(c_in, 192, 1),
        nn.Sequential(_conv(c_in, c, 1), _wide(c, c, 7), _tall(c, 192, 7)),
        nn.Sequential(
            _conv(c_in, c, 1), _tall(c, c, 7), _wide(c, c, 7), _tall(c, c, 7), _wide(c, 192, 7)
        ),
        _pooled(c_in, 192),
    )


def _d(c_in: int) -> nn.Module:
    seven = (_conv(c_in, 192, 1), _wide(192, 192, 7), _tall(192, 192, 7))
    return Branches(
        nn.Sequential(_conv(c_in, 192, 1), _conv(192, 320, 3, stride=2)),
        nn.Sequential(*seven, _conv(192, 192, 3, stride=2)),
        nn.MaxPool2d(3, 2),
    )


def _e(c_in: int) -> nn.Module:
    return Branches(
        _conv(c_in, 320, 1),
        nn.Sequential(_conv(c_in, 384, 1), Branches(_wide(384, 384, 3), _tall(384, 384, 3))),
        nn.Sequential(
            _conv(c_in, 448, 1),
            _conv(448, 384, 3, padding=1),
            Branches(_wide(384, 384, 3), _tall(384, 384, 3)),
        ),
        _pooled(c_in, 192),
    )


class DeepSpeech2(nn.Module):
    """Two convolutions and five bidirectional GRU layers of 800 (Amodei et al., 2016)."""

    def __init__(self, characters: int = 29) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 32, (41, 11), (2, 2), (20, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
            nn.Conv2d(32, 32, (21, 11), (2, 1), (10, 5)), nn.BatchNorm2d(32), nn.Hardtanh(0, 20),
        )  # fmt: skip
        widths = (32 * 41, 800, 800, 800, 800)
        self.layers = nn.ModuleList(nn.GRU(width, 800, bidirectional=True) for width in widths)
        self.head = nn.Linear(800, characters)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        x = x.flatten(1, 2).permute(2, 0, 1)
        for layer in self.layers:
            x = layer(x)[0]
            x = x[..., :800] + x[..., 800:]
        return self.head(x)


def _bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig())


def _gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(use_cache=False))


def _images(side: int) -> Callable[[int], Any]:
    return lambda batch: torch.empty(batch, 3, side, side, device="meta")


def _sentences(labels: Callable[[int], tuple[int, ...]]) -> Callable[[int], Any]:
    def make(batch: int) -> Any:
        def whole(*shape: int) -> Tensor:
            return torch.empty(*shape, dtype=torch.long, device="meta")

        return {"input_ids": whole(batch, TOKENS), "labels": whole(*labels(batch))}

    return make


BUILDERS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Any], str]] = {
    "bert": (_bert, _sentences(lambda batch: (batch,)), "adamw"),
    # about 8 s of speech, 161 frequencies each 10 ms
    "deepspeech2": (
        DeepSpeech2, lambda batch: torch.empty(batch, 1, 161, 800, device="meta"), "sgd+momentum",
    ),
    "gpt2": (_gpt2, _sentences(lambda batch: (batch, TOKENS)), "adamw"),
    "inception3": (Inception3, _images(299), "sgd+momentum"),
    "resnet50": (lambda: resnet50(1000), _images(224), "sgd+momentum"),
    "resnet50_cifar10": (lambda: resnet50(10), _images(32), "sgd+momentum"),
    "vgg16": (lambda: vgg16(1000), _images(224), "sgd+momentum"),
}  # fmt: skip
"""Network, inputs for a batch, optimizer."""
