"""What every way of naming a model leads to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from wattloop.core.errors import ConfigError

__all__ = ["DEFAULT_BATCH", "DEFAULT_IMAGE", "DEFAULT_SEQ", "Inputs", "Sizes", "Source"]

DEFAULT_BATCH, DEFAULT_SEQ, DEFAULT_IMAGE = 8, 512, 224

Inputs = tuple[Any, ...] | Mapping[str, Any]
"""Tensors on the meta device: arguments by position, or by name."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large one pass is; None takes what is usual for the model, and a note says what.

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
        """What was stated, by name."""
        every = {"batch": self.batch, "seq": self.seq, "image": self.image}
        return {name: value for name, value in every.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Source:
    """A module ready to be traced.

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
