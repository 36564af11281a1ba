"""Networks without residuals or in older forms: AlexNet, SqueezeNet, GoogLeNet, Darknet and so on.

They make small pictures of many kinds: few large layers, branches that are joined, separable
convolutions, norms before activations.
"""

from typing import Any

import torch
from torch import nn

from wattloop.predict.calibrate.zoo.blocks import ConvNorm, Residual, classifier

__all__ = ["alexnet", "darknet53", "googlenet", "squeezenet", "wide_resnet", "xception"]


class Branches(nn.Module):
    """The results of several bodies, joined by channels."""

    def __init__(self, *bodies: nn.Module) -> None:
        super().__init__()
        self.bodies = nn.ModuleList(bodies)

    def forward(self, x: Any) -> Any:
        """Joined results."""
        return torch.cat([body(x) for body in self.bodies], dim=1)


def _plain(c_in: int, c_out: int, kernel: int, stride: int = 1, padding: int = 0) -> nn.Module:
    return nn.Sequential(nn.Conv2d(c_in, c_out, kernel, stride, padding), nn.ReLU())


def alexnet() -> nn.Module:
    """As in arXiv 1404.5997."""
    return nn.Sequential(
        _plain(3, 64, 11, 4, 2), nn.MaxPool2d(3, 2), _plain(64, 192, 5, 1, 2), nn.MaxPool2d(3, 2),
        _plain(192, 384, 3, 1, 1), _plain(384, 256, 3, 1, 1), _plain(256, 256, 3, 1, 1),
        nn.MaxPool2d(3, 2), nn.AdaptiveAvgPool2d(6), nn.Flatten(1), nn.Dropout(),
        nn.Linear(256 * 36, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(),
        nn.Linear(4096, 1000),
    )  # fmt: skip


def squeezenet() -> nn.Module:
    """As in arXiv 1602.07360, version 1.1."""

    def fire(c_in: int, squeezed: int, wide: int) -> nn.Module:
        both = Branches(_plain(squeezed, wide, 1), _plain(squeezed, wide, 3, 1, 1))
        return nn.Sequential(_plain(c_in, squeezed, 1), both)

    return nn.Sequential(
        _plain(3, 64, 3, 2), nn.MaxPool2d(3, 2), fire(64, 16, 64), fire(128, 16, 64),
        nn.MaxPool2d(3, 2), fire(128, 32, 128), fire(256, 32, 128), nn.MaxPool2d(3, 2),
        fire(256, 48, 192), fire(384, 48, 192), fire(384, 64, 256), fire(512, 64, 256),
        nn.Dropout(), _plain(512, 1000, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(1),
    )  # fmt: skip


_INCEPTIONS = (
    (192, 64, 96, 128, 16, 32, 32), (256, 128, 128, 192, 32, 96, 64), None,
    (480, 192, 96, 208, 16, 48, 64), (512, 160, 112, 224, 24, 64, 64),
    (512, 128, 128, 256, 24, 64, 64), (512, 112, 144, 288, 32, 64, 64),
    (528, 256, 160, 320, 32, 128, 128), None, (832, 256, 160, 320, 32, 128, 128),
    (832, 384, 192, 384, 48, 128, 128),
)  # fmt: skip
"""Channels that enter, and of each branch; None halves the picture."""


def googlenet() -> nn.Module:
    """As in arXiv 1409.4842 with batch norm, without the two losses on the way."""
    layers: list[nn.Module] = [
        ConvNorm(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1), ConvNorm(64, 64, 1), ConvNorm(64, 192, 3),
        nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    for sizes in _INCEPTIONS:
        if sizes is None:
            layers.append(nn.MaxPool2d(3, 2, 1))
            continue
        c_in, one, three_in, three, five_in, five, pooled = sizes
        layers.append(
            Branches(
                ConvNorm(c_in, one, 1),
                nn.Sequential(ConvNorm(c_in, three_in, 1), ConvNorm(three_in, three, 3)),
                nn.Sequential(ConvNorm(c_in, five_in, 1), ConvNorm(five_in, five, 3)),
                nn.Sequential(nn.MaxPool2d(3, 1, 1), ConvNorm(c_in, pooled, 1)),
            )
        )
    return nn.Sequential(*layers, *classifier(1024, drop=0.2))


def darknet53() -> nn.Module:
    """As in arXiv 1804.02767."""

    def layer(c_in: int, c_out: int, kernel: int, stride: int = 1) -> nn.Module:
        return ConvNorm(c_in, c_out, kernel, stride, activation=lambda: nn.LeakyReLU(0.1))

    layers: list[nn.Module] = [layer(3, 32, 3)]
    for width, number in ((64, 1), (128, 2), (256, 8), (512, 8), (1024, 4)):
        layers.append(layer(width // 2, width, 3, 2))
        for _ in range(number):
            body = nn.Sequential(layer(width, width // 2, 1), layer(width // 2, width, 3))
            layers.append(Residual(body))
    return nn.Sequential(*layers, *classifier(1024))


def wide_resnet(wide: int = 4, blocks: int = 4) -> nn.Module:
    """As in arXiv 1605.07146 for pictures of 32 pixels, where norms and activations come first.

    It has as many classes as the others.
    """

    def layer(c_in: int, c_out: int, stride: int = 1) -> list[nn.Module]:
        return [
            nn.BatchNorm2d(c_in), nn.ReLU(), nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        ]  # fmt: skip

    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False)]
    c_in = 16
    for stage in range(3):
        c_out = 16 * wide * 2**stage
        for position in range(blocks):
            stride = 2 if position == 0 and stage > 0 else 1
            body = nn.Sequential(*layer(c_in, c_out, stride), *layer(c_out, c_out))
            same = stride == 1 and c_in == c_out
            skip = None if same else nn.Conv2d(c_in, c_out, 1, stride, bias=False)
            layers.append(Residual(body, skip))
            c_in = c_out
    return nn.Sequential(*layers, nn.BatchNorm2d(c_in), nn.ReLU(), *classifier(c_in))


def xception() -> nn.Module:
    """As in arXiv 1610.02357."""

    def separable(c_in: int, c_out: int) -> list[nn.Module]:
        return [
            nn.ReLU(), nn.Conv2d(c_in, c_in, 3, 1, 1, groups=c_in, bias=False),
            nn.Conv2d(c_in, c_out, 1, bias=False), nn.BatchNorm2d(c_out),
        ]  # fmt: skip

    layers: list[nn.Module] = [ConvNorm(3, 32, 3, 2), ConvNorm(32, 64, 3)]
    c_in = 64
    for c_out in (128, 256, 728):
        body = [*separable(c_in, c_out), *separable(c_out, c_out), nn.MaxPool2d(3, 2, 1)]
        skip = ConvNorm(c_in, c_out, 1, 2, activation=None)
        layers.append(Residual(nn.Sequential(*body), skip))
        c_in = c_out
    for _ in range(8):
        thrice = [module for _ in range(3) for module in separable(728, 728)]
        layers.append(Residual(nn.Sequential(*thrice)))
    body = [*separable(728, 728), *separable(728, 1024), nn.MaxPool2d(3, 2, 1)]
    skip = ConvNorm(728, 1024, 1, 2, activation=None)
    layers.append(Residual(nn.Sequential(*body), skip))
    layers += [*separable(1024, 1536), *separable(1536, 2048)]
    return nn.Sequential(*layers, nn.ReLU(), *classifier(2048))
