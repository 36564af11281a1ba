"""What the host needs for a training step, whatever the GPU needs.

A phase is asked for while the GPU has nothing to do, and is over for the host when everything is
queued. That holds as long as its kernels fit in the GPU's queue, a thousand or so.
"""

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from wattloop.predict.calibrate.bench import Bench

__all__ = ["PHASES", "Phases", "dispatch_seconds", "is_dispatch"]

PHASES = ("forward", "backward", "optimizer")
FEWEST, MOST = 4, 20
LONGEST_S = 0.7


class Phases(Protocol):
    """A training step in three parts."""

    def forward(self) -> None:
        """Zero gradients, and the loss."""

    def backward(self) -> None:
        """The gradients."""

    def update(self) -> None:
        """The optimizer's step."""


def dispatch_seconds(
    bench: Bench, training: Phases, longest_s: float = LONGEST_S
) -> Mapping[str, float] | None:
    """Phase -> median time until its last kernel is queued; None on the CPU, which runs them."""
    if not bench.on_gpu:
        return None
    parts = (training.forward, training.backward, training.update)
    times: Sequence[list[float]] = [[] for _ in PHASES]
    end_s = time.perf_counter() + longest_s
    while len(times[0]) < MOST and (len(times[0]) < FEWEST or time.perf_counter() < end_s):
        for part, taken in zip(parts, times, strict=True):
            bench.synchronize()
            begin_s = time.perf_counter()
            part()
            taken.append(time.perf_counter() - begin_s)
    bench.synchronize()
    return {name: statistics.median(taken) for name, taken in zip(PHASES, times, strict=True)}


def is_dispatch(found: object) -> bool:
    """Whether a record's `host_s` is what `dispatch_seconds` writes: a time of every phase."""
    return (
        isinstance(found, Mapping)
        and set(found) == set(PHASES)
        and all(isinstance(s, float) and 0 < s < math.inf for s in found.values())
    )
