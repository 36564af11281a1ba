"""Networks of dense and grouped convolutions: ResNet, ResNeXt, RegNet, DenseNet, U-Net."""

from typing import Any

import torch
from torch import nn

from wattloop.predict.calibrate.zoo.blocks import ConvNorm, Residual, classifier

__all__ = ["densenet121", "regnet_x_400mf", "resnet", "resnext50", "unet"]


def resnet(number: tuple[int, ...], *, bottleneck: bool, classes: int = 1000) -> nn.Module:
    """As in arXiv 1512.03385; its first layers are those for large images."""
    return _residual_net(number, bottleneck=bottleneck, groups=1, base=64, classes=classes)


def resnext50() -> nn.Module:
    """As in arXiv 1611.05431, 32 groups of 4 channels."""
    return _residual_net((3, 4, 6, 3), bottleneck=True, groups=32, base=4, classes=1000)


def _residual_net(
    number: tuple[int, ...], *, bottleneck: bool, groups: int, base: int, classes: int
) -> nn.Module:
    layers: list[nn.Module] = [ConvNorm(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    c_in = 64
    for stage, blocks in enumerate(number):
        width = 64 * 2**stage
        c_out = width * 4 if bottleneck else width
        middle = width * base * groups // 64
        for position in range(blocks):
            stride = 2 if position == 0 and stage > 0 else 1
            if bottleneck:
                body = nn.Sequential(
                    ConvNorm(c_in, middle, 1),
                    ConvNorm(middle, middle, 3, stride, groups=groups),
                    ConvNorm(middle, c_out, 1, activation=None),
                )
            else:
                body = nn.Sequential(
                    ConvNorm(c_in, width, 3, stride), ConvNorm(width, c_out, 3, activation=None)
                )
            same = stride == 1 and c_in == c_out
            skip = None if same else ConvNorm(c_in, c_out, 1, stride, activation=None)
            layers.append(Residual(body, skip, nn.ReLU()))
            c_in = c_out
    return nn.Sequential(*layers, *classifier(c_in, classes))


def regnet_x_400mf() -> nn.Module:
    """As in arXiv 2003.13678, groups of 16 channels."""
    layers: list[nn.Module] = [ConvNorm(3, 32, 3, 2)]
    c_in = 32
    for width, number in ((32, 1), (64, 2), (160, 7), (400, 12)):
        for position in range(number):
            stride = 2 if position == 0 else 1
            body = nn.Sequential(
                ConvNorm(c_in, width, 1),
                ConvNorm(width, width, 3, stride, groups=width // 16),
                ConvNorm(width, width, 1, activation=None),
            )
            skip = ConvNorm(c_in, width, 1, stride, activation=None) if position == 0 else None
            layers.append(Residual(body, skip, nn.ReLU()))
            c_in = width
    return nn.Sequential(*layers, *classifier(400))


class _Dense(nn.Module):
    def __init__(self, c_in: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(c_in),
            nn.ReLU(),
            nn.Conv2d(c_in, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth),
            nn.ReLU(),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, x: Any) -> Any:
        return torch.cat((x, self.body(x)), dim=1)


def densenet121() -> nn.Module:
    """As in arXiv 1608.06993; each layer copies what came before instead of keeping a list."""
    layers: list[nn.Module] = [ConvNorm(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, number in enumerate((6, 12, 24, 16)):
        if stage:
            layers += [nn.BatchNorm2d(channels), nn.ReLU(),
                       nn.Conv2d(channels, channels // 2, 1, bias=False),
                       nn.AvgPool2d(2)]  # fmt: skip
            channels //= 2
        for _ in range(number):
            layers.append(_Dense(channels, 32))
            channels += 32
    return nn.Sequential(*layers, nn.BatchNorm2d(channels), nn.ReLU(), *classifier(channels))


class _Level(nn.Module):
    """One level of a U: down, what lies below, up again, joined with what was kept."""

    def __init__(self, channels: int, below: nn.Module) -> None:
        super().__init__()
        self.down = nn.MaxPool2d(2)
        self.below = below
        self.up = nn.ConvTranspose2d(2 * channels, channels, 2, 2)
        self.join = nn.Sequential(
            ConvNorm(2 * channels, channels, 3), ConvNorm(channels, channels, 3)
        )

    def forward(self, x: Any) -> Any:
        return self.join(torch.cat((x, self.up(self.below(self.down(x)))), dim=1))


def unet(classes: int = 10) -> nn.Module:
    """As in arXiv 1505.04597 with batch norm and padding."""

    def twice(c_in: int, c_out: int) -> list[nn.Module]:
        return [ConvNorm(c_in, c_out, 3), ConvNorm(c_out, c_out, 3)]

    below: nn.Module = nn.Sequential(*twice(512, 1024))
    for channels in (512, 256, 128, 64):
        entering = 3 if channels == 64 else channels // 2
        below = nn.Sequential(*twice(entering, channels), _Level(channels, below))
    return nn.Sequential(below, nn.Conv2d(64, classes, 1))
