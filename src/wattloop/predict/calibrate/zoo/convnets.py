"""Convolutional networks of the zoo, as tables of layers: classic, dense, grouped and depthwise."""

from collections.abc import Callable, Iterable
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
        convolution = nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, groups=groups, bias=False)
        after = [] if activation is None else [activation()]
        super().__init__(convolution, nn.BatchNorm2d(c_out), *after)


class ResidualBlock(nn.Module):
    """Body whose input is added to its result, through `skip` where the sizes differ."""

    def __init__(
        self, body: nn.Module, skip: nn.Module | None = None, after: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.body, self.skip, self.after = body, skip, after

    def forward(self, x: Any) -> Any:
        y = self.body(x) + (x if self.skip is None else self.skip(x))
        return y if self.after is None else self.after(y)


class Branches(nn.Module):
    """Results of several bodies, concatenated by channels; None is the input itself."""

    def __init__(self, *bodies: nn.Module | None) -> None:
        super().__init__()
        self.bodies = nn.ModuleList(bodies)

    def forward(self, x: Any) -> Any:
        return torch.cat([x if body is None else body(x) for body in self.bodies], dim=1)


class SqueezeExcite(nn.Module):
    """Channels scaled by a function of their means."""

    def __init__(self, channels: int, squeezed: int, activation: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.scale = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, squeezed, 1), activation(),
            nn.Conv2d(squeezed, channels, 1), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        return x * self.scale(x)


def _classified(
    layers: Iterable[nn.Module], channels: int, classes: int = 1000, drop: float = 0.0
) -> nn.Module:
    """Return the layers, a mean over the image and a linear layer."""
    dropout = [nn.Dropout(drop)] if drop else []
    mean = nn.AdaptiveAvgPool2d(1), nn.Flatten(1)
    return nn.Sequential(*layers, *mean, *dropout, nn.Linear(channels, classes))


def _stem() -> list[nn.Module]:
    return [ConvNorm(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]


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
    layers = [*_stem(), ConvNorm(64, 64, 1), ConvNorm(64, 192, 3), nn.MaxPool2d(3, 2, 1)]
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
    return _classified(layers, 1024, drop=0.2)


def darknet53() -> nn.Module:
    """As in arXiv 1804.02767."""

    def layer(c_in: int, c_out: int, kernel: int, stride: int = 1) -> nn.Module:
        return ConvNorm(c_in, c_out, kernel, stride, activation=lambda: nn.LeakyReLU(0.1))

    layers = [layer(3, 32, 3)]
    for width, number in ((64, 1), (128, 2), (256, 8), (512, 8), (1024, 4)):
        layers.append(layer(width // 2, width, 3, 2))
        for _ in range(number):
            body = nn.Sequential(layer(width, width // 2, 1), layer(width // 2, width, 3))
            layers.append(ResidualBlock(body))
    return _classified(layers, 1024)


def wide_resnet(wide: int = 4, blocks: int = 4) -> nn.Module:
    """As in arXiv 1605.07146 for pictures of 32 pixels, where norms and activations come first.

    It has as many classes as the others.
    """
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False)]
    c_in = 16
    for stage in range(3):
        c_out = 16 * wide * 2**stage
        for position in range(blocks):
            stride = 2 if position == 0 and stage > 0 else 1
            body = nn.Sequential(
                *_norm_first(c_in, c_out, 3, stride), *_norm_first(c_out, c_out, 3)
            )
            same = stride == 1 and c_in == c_out
            skip = None if same else nn.Conv2d(c_in, c_out, 1, stride, bias=False)
            layers.append(ResidualBlock(body, skip))
            c_in = c_out
    return _classified([*layers, nn.BatchNorm2d(c_in), nn.ReLU()], c_in)


def _norm_first(c_in: int, c_out: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(c_in, c_out, kernel, stride, kernel // 2, bias=False)
    return [nn.BatchNorm2d(c_in), nn.ReLU(), convolution]


def xception() -> nn.Module:
    """As in arXiv 1610.02357."""

    def separable(c_in: int, c_out: int) -> list[nn.Module]:
        return [
            nn.ReLU(), nn.Conv2d(c_in, c_in, 3, 1, 1, groups=c_in, bias=False),
            nn.Conv2d(c_in, c_out, 1, bias=False), nn.BatchNorm2d(c_out),
        ]  # fmt: skip

    def smaller(c_in: int, middle: int, c_out: int) -> nn.Module:
        body = [*separable(c_in, middle), *separable(middle, c_out), nn.MaxPool2d(3, 2, 1)]
        skip = ConvNorm(c_in, c_out, 1, 2, activation=None)
        return ResidualBlock(nn.Sequential(*body), skip)

    layers: list[nn.Module] = [ConvNorm(3, 32, 3, 2), ConvNorm(32, 64, 3)]
    layers += [smaller(a, b, b) for a, b in ((64, 128), (128, 256), (256, 728))]
    for _ in range(8):
        thrice = [module for _ in range(3) for module in separable(728, 728)]
        layers.append(ResidualBlock(nn.Sequential(*thrice)))
    layers += [smaller(728, 728, 1024), *separable(1024, 1536), *separable(1536, 2048), nn.ReLU()]
    return _classified(layers, 2048)


def _bottlenecks(
    c_in: int, middle: int, c_out: int, number: int, stride: int, groups: int = 1
) -> Iterable[nn.Module]:
    """Yield `number` residual blocks of three convolutions; the first one has the stride."""
    for position in range(number):
        step = stride if position == 0 else 1
        body = nn.Sequential(
            ConvNorm(c_in, middle, 1),
            ConvNorm(middle, middle, 3, step, groups=groups),
            ConvNorm(middle, c_out, 1, activation=None),
        )
        skip = None if position else ConvNorm(c_in, c_out, 1, step, activation=None)
        yield ResidualBlock(body, skip, nn.ReLU())
        c_in = c_out


def resnet34() -> nn.Module:
    """As in arXiv 1512.03385; its first layers are those for large images."""
    layers, c_in = _stem(), 64
    for width, number in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for _ in range(number):
            stride = width // c_in
            body = nn.Sequential(
                ConvNorm(c_in, width, 3, stride), ConvNorm(width, width, 3, activation=None)
            )
            skip = None if stride == 1 else ConvNorm(c_in, width, 1, stride, activation=None)
            layers.append(ResidualBlock(body, skip, nn.ReLU()))
            c_in = width
    return _classified(layers, c_in)


def _large_resnet(numbers: tuple[int, ...], middle: int, groups: int) -> nn.Module:
    layers, c_in = _stem(), 64
    for stage, number in enumerate(numbers):
        c_out = 256 * 2**stage
        layers += _bottlenecks(c_in, middle * 2**stage, c_out, number, 2 if stage else 1, groups)
        c_in = c_out
    return _classified(layers, c_in)


def resnet101() -> nn.Module:
    """As in arXiv 1512.03385."""
    return _large_resnet((3, 4, 23, 3), 64, 1)


def resnext50() -> nn.Module:
    """As in arXiv 1611.05431, 32 groups of 4 channels."""
    return _large_resnet((3, 4, 6, 3), 128, 32)


def regnet_x_400mf() -> nn.Module:
    """As in arXiv 2003.13678, groups of 16 channels."""
    layers: list[nn.Module] = [ConvNorm(3, 32, 3, 2)]
    c_in = 32
    for width, number in ((32, 1), (64, 2), (160, 7), (400, 12)):
        layers += _bottlenecks(c_in, width, width, number, 2, groups=width // 16)
        c_in = width
    return _classified(layers, 400)


def densenet121() -> nn.Module:
    """As in arXiv 1608.06993; each layer copies what came before instead of keeping a list."""
    layers, channels = _stem(), 64
    for stage, number in enumerate((6, 12, 24, 16)):
        if stage:
            layers += [*_norm_first(channels, channels // 2, 1), nn.AvgPool2d(2)]
            channels //= 2
        for _ in range(number):
            body = nn.Sequential(*_norm_first(channels, 128, 1), *_norm_first(128, 32, 3))
            layers.append(Branches(None, body))
            channels += 32
    return _classified([*layers, nn.BatchNorm2d(channels), nn.ReLU()], channels)


class _Level(nn.Module):
    """One level of a U-Net: down, lower levels, up again, concatenated with the skip connection."""

    def __init__(self, channels: int, below: nn.Module) -> None:
        super().__init__()
        self.down, self.below = nn.MaxPool2d(2), below
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
    return _classified(layers, 1024)


def _inverted(
    stages: Iterable[tuple[int, int, int, int, int]],
    activation: Callable[[], nn.Module],
    *,
    excite: bool,
) -> nn.Module:
    """Return a network of inverted residuals: expansion, channels, blocks, stride and kernel."""
    layers: list[nn.Module] = [ConvNorm(3, 32, 3, 2, activation=activation)]
    c_in = 32
    for expand, c_out, number, stride, kernel in stages:
        for position in range(number):
            step, wide = stride if position == 0 else 1, c_in * expand
            body: list[nn.Module] = []
            if expand > 1:
                body.append(ConvNorm(c_in, wide, 1, activation=activation))
            body.append(ConvNorm(wide, wide, kernel, step, groups=wide, activation=activation))
            if excite:
                body.append(SqueezeExcite(wide, max(1, c_in // 4), activation))
            block = nn.Sequential(*body, ConvNorm(wide, c_out, 1, activation=None))
            layers.append(ResidualBlock(block) if step == 1 and c_in == c_out else block)
            c_in = c_out
    layers.append(ConvNorm(320, 1280, 1, activation=activation))
    return _classified(layers, 1280, drop=0.2)


def mobilenet_v2() -> nn.Module:
    """As in arXiv 1801.04381."""
    stages = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3),
              (6, 96, 3, 1, 3), (6, 160, 3, 2, 3), (6, 320, 1, 1, 3))  # fmt: skip
    return _inverted(stages, nn.ReLU6, excite=False)


def efficientnet_b0() -> nn.Module:
    """As in arXiv 1905.11946, without stochastic depth."""
    stages = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3),
              (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3))  # fmt: skip
    return _inverted(stages, nn.SiLU, excite=True)


class _Shuffle(nn.Module):
    """Channel shuffle of two groups."""

    def forward(self, x: Any) -> Any:
        n, c, h, w = x.shape
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class _ShuffleUnit(nn.Module):
    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        half, self.stride = c_out // 2, stride
        entering = c_in if stride == 2 else half
        self.right = nn.Sequential(
            ConvNorm(entering, half, 1),
            ConvNorm(half, half, 3, stride, groups=half, activation=None),
            ConvNorm(half, half, 1),
        )
        self.left = nn.Identity() if stride == 1 else nn.Sequential(
            ConvNorm(c_in, c_in, 3, 2, groups=c_in, activation=None), ConvNorm(c_in, half, 1)
        )  # fmt: skip
        self.shuffle = _Shuffle()

    def forward(self, x: Any) -> Any:
        left, right = (x, x) if self.stride == 2 else torch.chunk(x, 2, dim=1)
        return self.shuffle(torch.cat((self.left(left), self.right(right)), dim=1))


def shufflenet_v2() -> nn.Module:
    """As in arXiv 1807.11164, width 1."""
    layers: list[nn.Module] = [ConvNorm(3, 24, 3, 2), nn.MaxPool2d(3, 2, 1)]
    c_in = 24
    for c_out, number in ((116, 4), (232, 8), (464, 4)):
        for position in range(number):
            layers.append(_ShuffleUnit(c_in, c_out, 2 if position == 0 else 1))
            c_in = c_out
    return _classified([*layers, ConvNorm(464, 1024, 1)], 1024)


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
