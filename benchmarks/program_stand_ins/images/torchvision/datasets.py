"""Generated images under the names of data sets; how many is in the environment."""

import os
from collections.abc import Callable
from typing import Any

import torch

TRAINED = int(os.environ.get("STAND_IN_IMAGES", "1280"))
TESTED = 256


class FakeData(torch.utils.data.Dataset[Any]):
    """Random images of fixed seeds, and random classes."""

    def __init__(
        self,
        size: int = TRAINED,
        image_size: tuple[int, ...] = (3, 224, 224),
        num_classes: int = 10,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self._size, self._image_size, self._classes = size, image_size, num_classes
        self._transform = transform

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, i: int) -> tuple[Any, int]:
        if not 0 <= i < self._size:
            raise IndexError(i)
        image = torch.rand(self._image_size, generator=torch.Generator().manual_seed(i))
        return image if self._transform is None else self._transform(image), i % self._classes


class MNIST(FakeData):
    """As many generated images as asked for, 28 x 28."""

    def __init__(
        self,
        root: str,
        train: bool = True,
        transform: Callable[[Any], Any] | None = None,
        download: bool = False,
    ) -> None:
        super().__init__(TRAINED if train else TESTED, (1, 28, 28), transform=transform)
