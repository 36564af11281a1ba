"""Torch and Transformers, or the command that installs them."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from wattloop.core.errors import ConfigError

__all__ = ["needs_torch", "needs_transformers", "quiet_libraries"]


def needs_torch(what: str, extra: str = "torch") -> ModuleType:
    """The module `torch`; `what` says in the error what cannot be done without it."""
    try:
        import torch
    except ImportError:
        raise ConfigError(
            f"{what} needs PyTorch, which is not installed: pip install 'wattloop[{extra}]'; a "
            "workload saved elsewhere with --save-workload predicts without it"
        ) from None
    return torch  # type: ignore[no-any-return]  # torch is skipped by mypy


def needs_transformers(what: str) -> ModuleType:
    """The module `transformers`, which needs torch as well."""
    needs_torch(what, "hf")
    try:
        import transformers
    except ImportError:
        raise ConfigError(
            f"{what} needs Transformers, which is not installed: pip install 'wattloop[hf]'"
        ) from None
    return transformers  # type: ignore[no-any-return]  # transformers is skipped by mypy


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Without their advice to people who train, and tracebacks of errors that we explain."""
    fake_tensors = logging.getLogger("torch._subclasses.fake_tensor")
    disabled, fake_tensors.disabled = fake_tensors.disabled, True
    transformers = sys.modules.get("transformers")
    verbosity = None if transformers is None else transformers.logging.get_verbosity()
    if transformers is not None:
        transformers.logging.set_verbosity_error()
    try:
        yield
    finally:
        fake_tensors.disabled = disabled
        if transformers is not None:
            transformers.logging.set_verbosity(verbosity)
