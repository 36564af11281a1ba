"""A call that is skipped: outputs and gradients of the right shapes, and nothing between."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from wattloop.predict.workload.tracing.recorder import Recorder

__all__ = ["Taken", "skipped"]


@dataclass
class Taken:
    """Memory that a skipped call takes until its backward pass.

    Attributes:
        second: number of the call that ran in its place.
        bytes: taken now.
        rise_bytes: how far memory rose while that one ran.
    """

    second: int
    bytes: int
    rise_bytes: int


def skipped(
    recorder: Recorder,
    taken: Taken,
    module: Any,
    given: Sequence[Any],
    places: Sequence[Any],
) -> list[Any]:
    """Outputs as those of the call that ran, connected to inputs and parameters."""
    memory = recorder.memory
    memory.peak_bytes = max(memory.peak_bytes, memory.live_bytes + taken.rise_bytes)
    memory.add(taken.bytes)
    new = [place for place in places if place[0] == "new"]
    differentiable = [place for place in new if place[4]]
    sources = [
        each
        for each in (*given, *module.parameters())
        if isinstance(each, torch.Tensor) and each.requires_grad
    ]
    made: list[Any] = []
    with recorder.paused():
        if differentiable:
            made = list(_Skip.apply(recorder, taken, differentiable, *sources))
        outputs = []
        for place in places:
            if place[0] == "input":
                outputs.append(given[place[1]])
            elif place[0] == "value":
                outputs.append(place[1])
            else:
                outputs.append(made.pop(0) if place[4] else _empty(place))
    memory.saw([each for each in outputs if isinstance(each, torch.Tensor)])
    return outputs


class _Skip(torch.autograd.Function):  # type: ignore[misc]  # torch is not typed here
    """Takes the memory of a block in the forward pass and gives it back in the backward."""

    @staticmethod
    def forward(ctx: Any, recorder: Any, taken: Taken, places: Any, *sources: Any) -> Any:
        """Outputs of these shapes."""
        ctx.recorder, ctx.taken = recorder, taken
        ctx.shapes = [(tuple(each.shape), each.stride(), each.dtype) for each in sources]
        return tuple(_empty(place) for place in places)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        """Gradients of the shapes of the sources."""
        recorder = ctx.recorder
        memory = recorder.memory
        recorder.skipped_levels.setdefault(ctx.taken.second, []).append(memory.live_bytes)
        memory.remove(ctx.taken.bytes)
        with recorder.paused():
            made = [_empty(("new", *shape)) for shape in ctx.shapes]
        memory.saw(made)
        return (None, None, None, *made)


def _empty(place: Any) -> Any:
    _, shape, stride, dtype, *_ = place
    return torch.empty_strided(shape, stride, dtype=dtype)
