"""Pieces that several convolutional networks share."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

__all__ = ["ConvNorm", "Residual", "SqueezeExcite", "classifier"]


class ConvNorm(nn.Sequential):
    """Convolution, batch norm and, unless told otherwise, an activation."""

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


class Residual(nn.Module):
    """A body whose input is added to its result, by way of `skip` where the sizes differ."""

    def __init__(
        self, body: nn.Module, skip: nn.Module | None = None, after: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.body = body
        self.skip = skip
        self.after = after

    def forward(self, x: Any) -> Any:
        """Body plus skip."""
        y = self.body(x) + (x if self.skip is None else self.skip(x))
        return y if self.after is None else self.after(y)


class SqueezeExcite(nn.Module):
    """Channels scaled by what their means say."""

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
        """Scaled channels."""
        return x * self.scale(x)


def classifier(channels: int, classes: int = 1000, drop: float = 0.0) -> list[nn.Module]:
    """Mean over the image and a linear layer."""
    layers: list[nn.Module] = [nn.AdaptiveAvgPool2d(1), nn.Flatten(1)]
    if drop:
        layers.append(nn.Dropout(drop))
    return [*layers, nn.Linear(channels, classes)]


class Shuffle(nn.Module):
    """Channels of two groups taken in turn."""

    def forward(self, x: Any) -> Any:
        """Interleaved channels."""
        n, c, h, w = x.shape
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def cut(x: Any) -> tuple[Any, Any]:
    """Both halves of the channels."""
    first, second = torch.chunk(x, 2, dim=1)
    return first, second
