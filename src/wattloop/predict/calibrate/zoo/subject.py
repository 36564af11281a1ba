"""A model with its inputs and its loss, ready to train or to trace."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from wattloop.predict.calibrate.zoo import convnets, mobile, sequences

__all__ = ["NAMES", "Subject", "subject"]


@dataclass(frozen=True, slots=True)
class Subject:
    """What is trained.

    Attributes:
        name: `model@size`; the size is the sequence length or the image's side.
        model: a module whose call on all inputs gives the loss.
        inputs: batch size and device -> inputs.
        optimizer: `sgd` with momentum for names that begin with resnet or vgg, else `adamw`.
    """

    name: str
    model: nn.Module
    inputs: Callable[[int, Any], tuple[Any, ...]]

    @property
    def optimizer(self) -> str:
        """By the rule of the project's first measurements."""
        return "sgd" if self.name.startswith(("resnet", "vgg")) else "adamw"


class _WithLoss(nn.Module):
    """Cross entropy of a network's scores; positions of sequences and images count each."""

    def __init__(self, net: nn.Module, *, classes_last: bool = False) -> None:
        super().__init__()
        self.net = net
        self.classes_last = classes_last

    def forward(self, x: Any, target: Any) -> Any:
        """The loss."""
        scores = self.net(x)
        if self.classes_last:
            scores, target = scores.flatten(0, 1), target.flatten()
        return nn.functional.cross_entropy(scores, target)


def _images(side: int, classes: int = 1000) -> Callable[[int, Any], tuple[Any, ...]]:
    def make(batch: int, device: Any) -> tuple[Any, ...]:
        x = torch.randn((batch, 3, side, side), device=device)
        return x, torch.randint(classes, (batch,), device=device)

    return make


def _maps(side: int, classes: int) -> Callable[[int, Any], tuple[Any, ...]]:
    def make(batch: int, device: Any) -> tuple[Any, ...]:
        x = torch.randn((batch, 3, side, side), device=device)
        return x, torch.randint(classes, (batch, side, side), device=device)

    return make


def _words(length: int, words: int, labels: int = 0) -> Callable[[int, Any], tuple[Any, ...]]:
    """Token numbers; the labels are tokens again, or one class per text."""

    def make(batch: int, device: Any) -> tuple[Any, ...]:
        x = torch.randint(words, (batch, length), device=device)
        if labels:
            return x, torch.randint(labels, (batch,), device=device)
        return x, torch.randint(words, (batch, length), device=device)

    return make


def _series(length: int, width: int, classes: int) -> Callable[[int, Any], tuple[Any, ...]]:
    def make(batch: int, device: Any) -> tuple[Any, ...]:
        x = torch.randn((batch, length, width), device=device)
        return x, torch.randint(classes, (batch,), device=device)

    return make


_CONVNETS: dict[str, Callable[[], nn.Module]] = {
    "mobilenet_v1": mobile.mobilenet_v1,
    "mobilenet_v2": mobile.mobilenet_v2,
    "efficientnet_b0": mobile.efficientnet_b0,
    "shufflenet_v2": mobile.shufflenet_v2,
    "convnext_tiny": mobile.convnext_tiny,
    "resnet34": lambda: convnets.resnet((3, 4, 6, 3), bottleneck=False),
    "resnet101": lambda: convnets.resnet((3, 4, 23, 3), bottleneck=True),
    "resnext50": convnets.resnext50,
    "regnet_x_400mf": convnets.regnet_x_400mf,
    "densenet121": convnets.densenet121,
    "mixer_s16": sequences.MlpMixer,
}
_VOCABULARY = {
    "bert_base": 30522,
    "roberta_base": 50265,
    "opt_125m": 50272,
    "t5_small": 32128,
    "gpt2_medium": 50257,
    "llama_300m": 32000,
}
_IMAGE_TRANSFORMERS = ("swin_tiny", "deit_small")
_OTHERS = ("unet", "lstm_lm", "gru", "lstm_deep")
NAMES = (*_CONVNETS, *_IMAGE_TRANSFORMERS, *_VOCABULARY, *_OTHERS)
"""Models the zoo knows, without their size."""


def subject(name: str) -> Subject:
    """The model of a name such as `mobilenet_v2@224`, on torch's default device.

    Raises:
        KeyError: the zoo has no such model.
    """
    kind, _, size_text = name.partition("@")
    size = int(size_text)
    if kind in _CONVNETS:
        return Subject(name, _WithLoss(_CONVNETS[kind]()), _images(size))
    if kind in _IMAGE_TRANSFORMERS:
        return Subject(name, sequences.build_hf(kind), _images(size))
    if kind in _VOCABULARY:
        labels = 2 if kind == "bert_base" else 0
        return Subject(name, sequences.build_hf(kind), _words(size, _VOCABULARY[kind], labels))
    if kind == "unet":
        return Subject(name, _WithLoss(convnets.unet(10)), _maps(size, 10))
    if kind == "lstm_lm":
        net: nn.Module = sequences.RecurrentLanguageModel(33278, 650, 2)
        return Subject(name, _WithLoss(net, classes_last=True), _words(size, 33278))
    if kind == "gru":
        net = sequences.RecurrentClassifier(nn.GRU, 40, 256, 3, 35)
        return Subject(name, _WithLoss(net), _series(size, 40, 35))
    if kind == "lstm_deep":
        net = sequences.RecurrentClassifier(nn.LSTM, 128, 1024, 3, 100)
        return Subject(name, _WithLoss(net), _series(size, 128, 100))
    raise KeyError(name)
