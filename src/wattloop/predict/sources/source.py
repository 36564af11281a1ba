"""Interface of a model source, and the optional libraries that sources need."""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from wattloop.core.errors import ConfigError


def needs_torch(what: str, extra: str = "torch") -> ModuleType:
    """Import torch; `what` names the feature in the error."""
    try:
        import torch
    except ImportError:
        raise ConfigError(
            f"{what} needs PyTorch, which is not installed: pip install 'wattloop[{extra}]'; a "
            "workload saved elsewhere with --save-workload predicts without it"
        ) from None
    return torch  # type: ignore[no-any-return]  # torch is skipped by mypy


def needs_transformers(what: str) -> ModuleType:
    """Import transformers, which needs torch as well."""
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
    """Silence advice about training, and tracebacks of errors that we translate."""
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


DEFAULT_BATCH, DEFAULT_SEQ, DEFAULT_IMAGE = 8, 512, 224


Inputs = tuple[Any, ...] | Mapping[str, Any]
"""Tensors on the meta device: arguments by position, or by name."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Size of one pass; None takes the model's usual size, with a note.

    Attributes:
        batch: samples of one pass on one GPU.
        seq: tokens of a sample.
        image: height and width of an image in pixels.
    """

    batch: int | None = None
    seq: int | None = None
    image: int | None = None

    def __post_init__(self) -> None:
        for name in ("batch", "seq", "image"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} {value}: must be a whole number of at least 1")

    def named(self) -> dict[str, int]:
        """Return the stated sizes, by name."""
        every = {"batch": self.batch, "seq": self.seq, "image": self.image}
        return {name: value for name, value in every.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Source:
    """Module ready to be traced.

    Attributes:
        name: what it is called in results, as it was asked for.
        module: the `nn.Module`; its weights may be on the meta device.
        inputs: of one pass.
        loss: takes the module's output, gives what is minimised; None when the module computes
            its own (an output with `loss`).
        batch: samples of one pass.
        notes: what was assumed, for people.
    """

    name: str
    module: Any
    inputs: Inputs
    loss: Callable[..., Any] | None
    batch: int
    notes: tuple[str, ...] = ()
