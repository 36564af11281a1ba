"""Networks of depthwise convolutions: MobileNets, EfficientNet-B0, ShuffleNet, ConvNeXt."""

from typing import Any

import torch
from torch import nn

from wattloop.predict.calibrate.zoo.blocks import (
    ConvNorm,
    Residual,
    Shuffle,
    SqueezeExcite,
    classifier,
    cut,
)

__all__ = ["convnext_tiny", "efficientnet_b0", "mobilenet_v1", "mobilenet_v2", "shufflenet_v2"]


def mobilenet_v1() -> nn.Module:
    """As in arXiv 1704.04861."""
    widths = ((32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2),
              *((512, 512, 1),) * 5, (512, 1024, 2), (1024, 1024, 1))  # fmt: skip
    layers: list[nn.Module] = [ConvNorm(3, 32, 3, 2)]
    for c_in, c_out, stride in widths:
        layers += [ConvNorm(c_in, c_in, 3, stride, groups=c_in), ConvNorm(c_in, c_out, 1)]
    return nn.Sequential(*layers, *classifier(1024))


def mobilenet_v2() -> nn.Module:
    """As in arXiv 1801.04381."""
    layers: list[nn.Module] = [ConvNorm(3, 32, 3, 2, activation=nn.ReLU6)]
    c_in = 32
    for expand, c_out, number, stride in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2),
                                          (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
                                          (6, 320, 1, 1)):  # fmt: skip
        for position in range(number):
            step = stride if position == 0 else 1
            wide = c_in * expand
            body: list[nn.Module] = []
            if expand > 1:
                body.append(ConvNorm(c_in, wide, 1, activation=nn.ReLU6))
            body += [
                ConvNorm(wide, wide, 3, step, groups=wide, activation=nn.ReLU6),
                ConvNorm(wide, c_out, 1, activation=None),
            ]
            block = nn.Sequential(*body)
            layers.append(Residual(block) if step == 1 and c_in == c_out else block)
            c_in = c_out
    layers.append(ConvNorm(320, 1280, 1, activation=nn.ReLU6))
    return nn.Sequential(*layers, *classifier(1280, drop=0.2))


def efficientnet_b0() -> nn.Module:
    """As in arXiv 1905.11946, without stochastic depth."""
    layers: list[nn.Module] = [ConvNorm(3, 32, 3, 2, activation=nn.SiLU)]
    c_in = 32
    for expand, c_out, number, stride, kernel in ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3),
                                                  (6, 40, 2, 2, 5), (6, 80, 3, 2, 3),
                                                  (6, 112, 3, 1, 5), (6, 192, 4, 2, 5),
                                                  (6, 320, 1, 1, 3)):  # fmt: skip
        for position in range(number):
            step = stride if position == 0 else 1
            wide = c_in * expand
            body: list[nn.Module] = []
            if expand > 1:
                body.append(ConvNorm(c_in, wide, 1, activation=nn.SiLU))
            body += [
                ConvNorm(wide, wide, kernel, step, groups=wide, activation=nn.SiLU),
                SqueezeExcite(wide, max(1, c_in // 4), nn.SiLU),
                ConvNorm(wide, c_out, 1, activation=None),
            ]
            block = nn.Sequential(*body)
            layers.append(Residual(block) if step == 1 and c_in == c_out else block)
            c_in = c_out
    layers.append(ConvNorm(320, 1280, 1, activation=nn.SiLU))
    return nn.Sequential(*layers, *classifier(1280, drop=0.2))


class _ShuffleUnit(nn.Module):
    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        half = c_out // 2
        self.stride = stride
        entering = c_in if stride == 2 else half
        self.right = nn.Sequential(
            ConvNorm(entering, half, 1),
            ConvNorm(half, half, 3, stride, groups=half, activation=None),
            ConvNorm(half, half, 1),
        )
        self.left = nn.Identity() if stride == 1 else nn.Sequential(
            ConvNorm(c_in, c_in, 3, 2, groups=c_in, activation=None), ConvNorm(c_in, half, 1)
        )  # fmt: skip
        self.shuffle = Shuffle()

    def forward(self, x: Any) -> Any:
        left, right = (x, x) if self.stride == 2 else cut(x)
        return self.shuffle(torch.cat((self.left(left), self.right(right)), dim=1))


def shufflenet_v2() -> nn.Module:
    """As in arXiv 1807.11164, width 1."""
    layers: list[nn.Module] = [ConvNorm(3, 24, 3, 2), nn.MaxPool2d(3, 2, 1)]
    c_in = 24
    for c_out, number in ((116, 4), (232, 8), (464, 4)):
        for position in range(number):
            layers.append(_ShuffleUnit(c_in, c_out, 2 if position == 0 else 1))
            c_in = c_out
    return nn.Sequential(*layers, ConvNorm(464, 1024, 1), *classifier(1024))


class _ChannelNorm(nn.Module):
    """Layer norm over the channels of an image."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels, eps=1e-6)

    def forward(self, x: Any) -> Any:
        return self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class _NextBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.mix = nn.Sequential(
            nn.LayerNorm(channels, eps=1e-6),
            nn.Linear(channels, 4 * channels),
            nn.GELU(),
            nn.Linear(4 * channels, channels),
        )
        self.scale = nn.Parameter(torch.full((channels,), 1e-6))

    def forward(self, x: Any) -> Any:
        y = self.mix(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * y).permute(0, 3, 1, 2)


def convnext_tiny() -> nn.Module:
    """As in arXiv 2201.03545, without stochastic depth."""
    layers: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4), _ChannelNorm(96)]
    c_in = 96
    for channels, number in ((96, 3), (192, 3), (384, 9), (768, 3)):
        if channels != c_in:
            layers += [_ChannelNorm(c_in), nn.Conv2d(c_in, channels, 2, 2)]
            c_in = channels
        layers += [_NextBlock(channels) for _ in range(number)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.LayerNorm(768), nn.Linear(768, 1000)]
    return nn.Sequential(*layers, *head)
