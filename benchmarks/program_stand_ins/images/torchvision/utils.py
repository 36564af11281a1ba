"""Images on disk, as tensors."""

from typing import Any

import torch


def save_image(tensor: Any, path: Any, **_: Any) -> None:
    torch.save(tensor, path)


def make_grid(tensor: Any, **_: Any) -> Any:
    return tensor[0]
