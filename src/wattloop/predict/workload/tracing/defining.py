"""Operations of our own, which exist on fake tensors only."""

from typing import Any

import torch

__all__ = ["define"]


def define(name: str, fake: Any, backward: Any = None, saves: Any = None) -> None:
    """An operation that exists on fake tensors only, so that running it for real is an error."""
    made = torch.library.custom_op(f"wattloop::{name}", fake, mutates_args=(), device_types=())
    made.register_fake(fake)
    if backward is not None:
        made.register_autograd(backward, setup_context=saves)
