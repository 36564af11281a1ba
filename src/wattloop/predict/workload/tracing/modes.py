"""The state of torch and of the model while it is traced."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["as_on_cuda", "in_mode"]


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
