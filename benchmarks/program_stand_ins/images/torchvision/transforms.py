"""Transforms of images that are tensors already."""

from collections.abc import Callable, Sequence
from typing import Any

import torch


class ToTensor:
    def __call__(self, image: Any) -> Any:
        return image


class Normalize:
    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self._mean = torch.tensor(mean).view(-1, 1, 1)
        self._std = torch.tensor(std).view(-1, 1, 1)

    def __call__(self, image: Any) -> Any:
        return (image - self._mean) / self._std


class Compose:
    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self._transforms = transforms

    def __call__(self, image: Any) -> Any:
        for transform in self._transforms:
            image = transform(image)
        return image
