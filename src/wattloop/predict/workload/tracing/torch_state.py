"""The state of torch and of the model during a trace: modes, devices, unpacked samples."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


@contextmanager
def as_on_cuda() -> Iterator[None]:
    """Shortcuts that training never takes are off, whatever the caller has set.

    Nor does torch print tracebacks of what fails: the error that is raised tells it.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    log = logging.getLogger("torch._subclasses.fake_tensor")
    silent, log.disabled = log.disabled, True
    try:
        with torch.inference_mode(False):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        log.disabled = silent


@contextmanager
def in_mode(module: Any, training: bool) -> Iterator[None]:
    """The module is in training or evaluation mode in here, then as it was."""
    before = {each: each.training for each in module.modules()}
    if not training:
        module.eval()
    elif not module.training:
        module.train()
    try:
        yield
    finally:
        for each, value in before.items():
            each.training = value


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


NAME = "find_packed_sequence_indices"


@contextmanager
def samples_unpacked() -> Iterator[None]:
    """Positions count as those of whole samples in here.

    Transformers leaves the causal mask to the attention kernel (flash attention) when it sees from
    the positions that nothing is packed. On fake tensors it cannot see, and would make a mask,
    which another, slower kernel serves.
    """
    masking: Any = sys.modules.get("transformers.masking_utils")
    original = getattr(masking, NAME, None)
    if original is None:
        yield
        return

    def none_found(position_ids: Any) -> None:
        original(position_ids)  # what looking costs is part of the step

    setattr(masking, NAME, none_found)
    try:
        yield
    finally:
        setattr(masking, NAME, original)
