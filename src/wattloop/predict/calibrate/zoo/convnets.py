"""Convolutional networks of the zoo: classic, dense, grouped and depthwise."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class ConvNorm(nn.Sequential):
    """Convolution, batch norm and, by default, an activation."""

    def __init__(
        self,
        c_in: int,
        c_out: int,
        kernel: int,
        stride: int = 1,
        groups: int = 1,
        activation: Callable[[], nn.Module] | None = nn.ReLU,
    ) -> None:
        layers: list[nn.Module] = [
            nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, groups=groups, bias=False),
            nn.BatchNorm2d(c_out),
        ]
        if activation is not None:
            layers.append(activation())
        super().__init__(*layers)


class ResidualBlock(nn.Module):
    """Body whose input is added to its result, through `skip` where the sizes differ."""

    def __init__(
        self, body: nn.Module, skip: nn.Module | None = None, after: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.body = body
        self.skip = skip
        self.after = after

    def forward(self, x: Any) -> Any:
        y = self.body(x) + (x if self.skip is None else self.skip(x))
        return y if self.after is None else self.after(y)


class SqueezeExcite(nn.Module):
    """Channels scaled by a function of their means."""

    def __init__(self, channels: int, squeezed: int, activation: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.scale = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            activation(),
            nn.Conv2d(squeezed, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Any) -> Any:
        return x * self.scale(x)


def classifier(channels: int, classes: int = 1000, drop: float = 0.0) -> list[nn.Module]:
    """Return a mean over the image and a linear layer."""
    layers: list[nn.Module] = [nn.AdaptiveAvgPool2d(1), nn.Flatten(1)]
    if drop:
        layers.append(nn.Dropout(drop))
    return [*layers, nn.Linear(channels, classes)]


class Shuffle(nn.Module):
    """Channel shuffle of two groups."""

    def forward(self, x: Any) -> Any:
        n, c, h, w = x.shape
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def cut(x: Any) -> tuple[Any, Any]:
    """Return both halves of the channels."""
    first, second = torch.chunk(x, 2, dim=1)
    return first, second


# Networks without residuals or in older forms: few large layers, concatenated branches, separable
# convolutions, norms before activations.


class Branches(nn.Module):
    """Results of several bodies, concatenated by channels."""

    def __init__(self, *bodies: nn.Module) -> None:
        super().__init__()
        self.bodies = nn.ModuleList(bodies)

    def forward(self, x: Any) -> Any:
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
"""Input channels, and channels of each branch; None halves the picture."""


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
            layers.append(ResidualBlock(body))
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
            layers.append(ResidualBlock(body, skip))
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
        layers.append(ResidualBlock(nn.Sequential(*body), skip))
        c_in = c_out
    for _ in range(8):
        thrice = [module for _ in range(3) for module in separable(728, 728)]
        layers.append(ResidualBlock(nn.Sequential(*thrice)))
    body = [*separable(728, 728), *separable(728, 1024), nn.MaxPool2d(3, 2, 1)]
    skip = ConvNorm(728, 1024, 1, 2, activation=None)
    layers.append(ResidualBlock(nn.Sequential(*body), skip))
    layers += [*separable(1024, 1536), *separable(1536, 2048)]
    return nn.Sequential(*layers, nn.ReLU(), *classifier(2048))


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
            layers.append(ResidualBlock(body, skip, nn.ReLU()))
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
            layers.append(ResidualBlock(body, skip, nn.ReLU()))
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
    """One level of a U-Net: down, lower levels, up again, concatenated with the skip connection."""

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
            layers.append(ResidualBlock(block) if step == 1 and c_in == c_out else block)
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
            layers.append(ResidualBlock(block) if step == 1 and c_in == c_out else block)
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
