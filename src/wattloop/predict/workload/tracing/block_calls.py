"""Calls of blocks: what is kept of one that ran, and how two are compared."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from wattloop.predict.workload.tracing.skipping import Taken

__all__ = ["Alike", "BlockCall", "comparable", "is_plain", "new_bytes", "placed"]


@dataclass
class BlockCall:
    """One call of a block that ran, and those that it stands for.

    Attributes:
        path: of the module.
        outer: the call it ran inside of, -1 for none.
        others: paths of the calls that were skipped.
        outputs: shapes of what it gave, to make others by.
        kept_bytes: memory that it left taken, its outputs apart.
        taken: the same of each call that was skipped.
        rise_bytes: how far above its start memory rose while it ran.
    """

    path: str
    outer: int
    others: list[str] = field(default_factory=list)
    outputs: Any = None
    kept_bytes: int = 0
    taken: list[Taken] = field(default_factory=list)
    rise_bytes: int = 0


@dataclass
class Alike:
    """Calls that are alike so far.

    Attributes:
        ran: numbers of those that ran.
        left_bytes: memory when the last of them ended.
        gap_bytes: how memory changed between the end of the second and the next call.
        taken: by the last call, when it was skipped.
    """

    ran: list[int] = field(default_factory=list)
    left_bytes: int = 0
    gap_bytes: int | None = None
    taken: Taken | None = None


def comparable(value: Any) -> Any:
    """What has to be the same of an input for two calls to be alike."""
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.dtype, value.requires_grad
    if value is None or isinstance(value, (bool, int, float, str, torch.dtype)):
        return value
    return type(value), id(value)


def is_plain(value: Any) -> bool:
    """Whether an output can be made again from its shape."""
    return value is None or isinstance(value, (torch.Tensor, bool, int, float, str))


def placed(value: Any, given: Sequence[Any]) -> Any:
    """An output as the input it is, as a shape to make, or as it is."""
    for index, each in enumerate(given):
        if each is value and isinstance(value, torch.Tensor):
            return ("input", index)
    if isinstance(value, torch.Tensor):
        return ("new", tuple(value.shape), value.stride(), value.dtype, value.requires_grad)
    return ("value", value)


def new_bytes(outputs: Sequence[Any], places: Sequence[Any]) -> int:
    """Memory behind outputs that the call made itself, each storage once."""
    made = {
        each.untyped_storage()._cdata: int(each.untyped_storage().nbytes())
        for each, place in zip(outputs, places, strict=True)
        if place[0] == "new"
    }
    return sum(made.values())
