"""Models that enter or leave autocast themselves mean CUDA's; fake tensors are on the CPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["cuda_autocast_is_ours"]


@contextmanager
def cuda_autocast_is_ours() -> Iterator[None]:
    """`torch.autocast("cuda", ...)` in a model acts on the fake tensors in here."""
    kind: Any = torch.autocast
    make, enter = kind.__init__, kind.__enter__
    moved: list[Any] = []

    def made(
        self: Any,
        device_type: str,
        dtype: Any = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or _usual()
        make(self, device_type, dtype, enabled, cache_enabled)

    def entered(self: Any) -> Any:
        if self.device == "cuda":  # a decorator, made before the trace
            self.device = "cpu"
            moved.append(self)
        return enter(self)

    kind.__init__, kind.__enter__ = made, entered
    try:
        yield
    finally:
        kind.__init__, kind.__enter__ = make, enter
        for each in moved:
            each.device = "cuda"


def _usual() -> Any:
    """The type where a model names none: that of the autocast around it, else CUDA's default."""
    return torch.get_autocast_dtype("cpu" if torch.is_autocast_enabled("cpu") else "cuda")
