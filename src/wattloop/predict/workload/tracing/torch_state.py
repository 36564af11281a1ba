"""State of torch and of the model during a trace: modes, devices, unpacked samples."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


@contextmanager
def as_on_cuda() -> Iterator[None]:
    """Disable shortcuts that training never takes, whatever the caller has set.

    Tracebacks by torch are disabled too: the raised error has the cause.
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
    """Set training or evaluation mode within this context, then restore it."""
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
    """Mode in which `.cuda()`, `.to("cuda")` and `device="cuda:0"` mean another device."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        self._device = device

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in STAYS:
            return args[0]
        args, kwargs = on_one_device(func, args, kwargs or {}, self._device)
        return func(*args, **kwargs)


STAYS = (torch.Tensor.cuda, torch.Tensor.pin_memory)
"""Methods that move a tensor to where all are."""


def on_one_device(func: Any, args: Any, kwargs: Any, device: str) -> tuple[Any, Any]:
    """Return arguments of a function of torch with `device` in the place of GPUs."""
    if _is_gpu(kwargs.get("device")):
        kwargs = {**kwargs, "device": device}
    if func is torch.Tensor.to:
        args = tuple(device if _is_gpu(each) else each for each in args)
    return args, kwargs


def _is_gpu(device: Any) -> bool:
    if isinstance(device, torch.device):
        return bool(device.type == "cuda")
    if isinstance(device, int) and not isinstance(device, bool):
        return True  # the number of a GPU
    return isinstance(device, str) and device.partition(":")[0] == "cuda"


MASKS_SKIPPED = (2, 14)
"""Version of torch from which Transformers leaves masks out when it is compiled."""


@contextmanager
def masks_as_compiled() -> Iterator[None]:
    """Let Transformers make attention masks within this context, as it does under `torch.compile`.

    Eager models leave a mask out that hides nothing. Before torch 2.14 compiled ones cannot tell,
    and make it: causal attention then computes both halves, and encoders, whose mask is broadcast,
    have no fused kernel.
    """
    masking: Any = sys.modules.get("transformers.masking_utils")
    original = getattr(masking, "is_torchdynamo_exporting", None)
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if original is None or version >= MASKS_SKIPPED:
        yield
        return
    masking.is_torchdynamo_exporting = lambda: True
    try:
        yield
    finally:
        masking.is_torchdynamo_exporting = original


NAME = "find_packed_sequence_indices"


@contextmanager
def samples_unpacked() -> Iterator[None]:
    """Treat positions as those of whole samples within this context.

    Transformers leaves the causal mask to flash attention when the positions show that nothing is
    packed. On fake tensors it cannot see that, and would make a mask, which needs a slower kernel.
    """
    masking: Any = sys.modules.get("transformers.masking_utils")
    original = getattr(masking, NAME, None)
    if original is None:
        yield
        return

    def none_found(position_ids: Any) -> None:
        original(position_ids)  # the cost of this check is part of the step

    setattr(masking, NAME, none_found)
    try:
        yield
    finally:
        setattr(masking, NAME, original)
