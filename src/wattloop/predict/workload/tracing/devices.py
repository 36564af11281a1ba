"""Models that name a GPU are traced where their fake tensors are, on the CPU."""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["OneDevice"]


class OneDevice(TorchFunctionMode):  # type: ignore[misc]  # torch is not typed here
    """`.cuda()`, `.to("cuda")` and `device="cuda:0"` mean another device in here."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        self._device = device

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call it with the device in place of any GPU."""
        if func is torch.Tensor.cuda:
            return args[0]
        kwargs = kwargs or {}
        if _is_gpu(kwargs.get("device")):
            kwargs = {**kwargs, "device": self._device}
        if func is torch.Tensor.to:
            args = tuple(self._device if _is_gpu(each) else each for each in args)
        return func(*args, **kwargs)


def _is_gpu(device: Any) -> bool:
    if isinstance(device, torch.device):
        return bool(device.type == "cuda")
    return isinstance(device, str) and device.partition(":")[0] == "cuda"
