"""Subject of a step: a model with its inputs and its loss, ready to train or to trace."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from wattloop.predict.calibrate.zoo import convnets, sequences
from wattloop.predict.calibrate.zoo.hugging_face import CONFIGURED, build_hf

Inputs = Callable[[int, Any], tuple[Any, ...]]
"""Batch size and device -> inputs, labels last."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Model to train.

    Attributes:
        name: `model@size`; the size is the sequence length or the image's side.
        model: a module whose call on all inputs gives the loss.
        inputs: batch size and device -> inputs.
        optimizer: `sgd` with momentum for names that begin with resnet or vgg, else `adamw`.
    """

    name: str
    model: nn.Module
    inputs: Inputs

    @property
    def optimizer(self) -> str:
        """Return the optimizer by the rule of the project's first measurements."""
        return "sgd" if self.name.startswith(("resnet", "vgg")) else "adamw"


class _WithLoss(nn.Module):
    """Cross entropy of a network's scores; each position of a sequence or image counts."""

    def __init__(self, net: nn.Module, *, classes_last: bool = False) -> None:
        super().__init__()
        self.net = net
        self.classes_last = classes_last

    def forward(self, x: Any, target: Any) -> Any:
        scores = self.net(x)
        if self.classes_last:
            scores, target = scores.flatten(0, 1), target.flatten()
        return nn.functional.cross_entropy(scores, target)


def _images(side: int, classes: int = 1000) -> Inputs:
    def make(batch: int, device: Any) -> tuple[Any, ...]:
        x = torch.randn((batch, 3, side, side), device=device)
        return x, torch.randint(classes, (batch,), device=device)

    return make


def _maps(side: int, classes: int) -> Inputs:
    def make(batch: int, device: Any) -> tuple[Any, ...]:
        x = torch.randn((batch, 3, side, side), device=device)
        return x, torch.randint(classes, (batch, side, side), device=device)

    return make


def _words(length: int, words: int, labels: int = 0) -> Inputs:
    """Return token numbers; the labels are tokens again, or one class per text."""

    def make(batch: int, device: Any) -> tuple[Any, ...]:
        x = torch.randint(words, (batch, length), device=device)
        if labels:
            return x, torch.randint(labels, (batch,), device=device)
        return x, torch.randint(words, (batch, length), device=device)

    return make


def _tagged(length: int, words: int, tags: int) -> Inputs:
    def make(batch: int, device: Any) -> tuple[Any, ...]:
        x = torch.randint(words, (batch, length), device=device)
        return x, torch.randint(tags, (batch, length), device=device)

    return make


def _sounds(length: int, words: int, bands: int = 80, frames: int = 3000) -> Inputs:
    """Return half a minute of sound, and its transcript."""

    def make(batch: int, device: Any) -> tuple[Any, ...]:
        x = torch.randn((batch, bands, frames), device=device)
        return x, torch.randint(words, (batch, length), device=device)

    return make


def _columns(numbers: int, places: int, rows: int, classes: int = 2) -> Inputs:
    """Return a table's numbers, then indices into other tables, as numbers too."""

    def make(batch: int, device: Any) -> tuple[Any, ...]:
        x = torch.randn((batch, numbers), device=device)
        if places:
            x = torch.cat((x, torch.randint(rows, (batch, places), device=device).float()), dim=1)
        return x, torch.randint(classes, (batch,), device=device)

    return make


def _series(length: int, width: int, classes: int) -> Inputs:
    def make(batch: int, device: Any) -> tuple[Any, ...]:
        x = torch.randn((batch, length, width), device=device)
        return x, torch.randint(classes, (batch,), device=device)

    return make


_CONVNETS: dict[str, Callable[[], nn.Module]] = {
    "mobilenet_v1": convnets.mobilenet_v1,
    "mobilenet_v2": convnets.mobilenet_v2,
    "efficientnet_b0": convnets.efficientnet_b0,
    "shufflenet_v2": convnets.shufflenet_v2,
    "convnext_tiny": convnets.convnext_tiny,
    "resnet34": lambda: convnets.resnet((3, 4, 6, 3), bottleneck=False),
    "resnet101": lambda: convnets.resnet((3, 4, 23, 3), bottleneck=True),
    "resnext50": convnets.resnext50,
    "regnet_x_400mf": convnets.regnet_x_400mf,
    "densenet121": convnets.densenet121,
    "mixer_s16": sequences.MlpMixer,
    "alexnet": convnets.alexnet,
    "squeezenet": convnets.squeezenet,
    "googlenet": convnets.googlenet,
    "darknet53": convnets.darknet53,
    "wide_resnet28_4": convnets.wide_resnet,
    "xception": convnets.xception,
}
_OTHERS: dict[str, Callable[[int], tuple[nn.Module, Inputs]]] = {
    "unet": lambda side: (_WithLoss(convnets.unet(10)), _maps(side, 10)),
    "lstm_lm": lambda length: (
        _WithLoss(sequences.RecurrentLanguageModel(33278, 650, 2), classes_last=True),
        _words(length, 33278),
    ),
    "gru": lambda length: (
        _WithLoss(sequences.RecurrentClassifier(nn.GRU, 40, 256, 3, 35)),
        _series(length, 40, 35),
    ),
    "lstm_deep": lambda length: (
        _WithLoss(sequences.RecurrentClassifier(nn.LSTM, 128, 1024, 3, 100)),
        _series(length, 128, 100),
    ),
    "bilstm_tagger": lambda length: (
        _WithLoss(sequences.Tagger(20_000, 100, 200, 17), classes_last=True),
        _tagged(length, 20_000, 17),
    ),
    "lstm_text": lambda length: (
        _WithLoss(sequences.TextClassifier(25_000, 100, 300, 2)), _words(length, 25_000, 2)
    ),
    "gru_speech": lambda length: (
        _WithLoss(sequences.Speech(80, 512, 4, 500)), _series(length, 80, 500)
    ),
    "dlrm": lambda number: (
        _WithLoss(sequences.Recommender(number)), _columns(13, number, 20_000)
    ),
    "tabular_resnet": lambda columns: (
        _WithLoss(sequences.tabular_resnet(columns)), _columns(columns, 0, 1, 10)
    ),
}  # fmt: skip
NAMES = (*_CONVNETS, *CONFIGURED, *_OTHERS)
"""Models of the zoo, without their size."""


def subject(name: str) -> Subject:
    """Build the model of a name such as `mobilenet_v2@224`, on torch's default device.

    Raises:
        KeyError: the zoo has no such model.
    """
    kind, _, size_text = name.partition("@")
    size = int(size_text)
    if kind in _CONVNETS:
        return Subject(name, _WithLoss(_CONVNETS[kind]()), _images(size))
    if kind in CONFIGURED:
        return Subject(name, build_hf(kind), _configured_inputs(kind, size))
    model, inputs = _OTHERS[kind](size)
    return Subject(name, model, inputs)


def _configured_inputs(kind: str, size: int) -> Inputs:
    chosen = CONFIGURED[kind]
    if chosen.first == "pixel_values":
        return _images(size, chosen.labels)
    if chosen.first == "input_features":
        return _sounds(size, chosen.words)
    return _words(size, chosen.words, chosen.labels)
