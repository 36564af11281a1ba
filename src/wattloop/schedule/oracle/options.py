"""Every placement a kind of job may take on a cluster, with its time and power, as arrays."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

__all__ = ["Options", "Shape"]

Shape = tuple[int, int, bool]
"""What a placement needs of the machines: GPU type (index), GPUs, and whether it is spread."""


@dataclass(frozen=True, eq=False)
class Options:
    """The placements of one kind of job, one row each, ordered by shape.

    Placements that do not fit into memory are not among them. Batch and cap vary within a shape:
    whether machines are free for a placement depends on its shape only.

    Attributes:
        type_index: GPU type, index into the cluster's types.
        gpus: GPUs of it.
        batch: samples per GPU and step.
        cap_w: power limit of each GPU.
        spread: over more nodes than it needs, joined by the network.
        sample_s: seconds per sample of the whole placement (step time / samples per step).
        power_w: of all its GPUs together while it runs.
        step_s: seconds of one iteration.
        source: where the figures come from, in words.
    """

    type_index: NDArray[np.int64]
    gpus: NDArray[np.int64]
    batch: NDArray[np.int64]
    cap_w: NDArray[np.float64]
    spread: NDArray[np.bool_]
    sample_s: NDArray[np.float64]
    power_w: NDArray[np.float64]
    step_s: NDArray[np.float64]
    source: str = ""

    def __len__(self) -> int:
        return len(self.gpus)

    def shape(self, option: int) -> Shape:
        """What option number `option` needs of the machines."""
        return self._shapes[option]

    def shapes(self) -> list[Shape]:
        """The shape of every option; the same list every time."""
        return self._shapes

    @cached_property
    def _shapes(self) -> list[Shape]:
        columns = (self.type_index.tolist(), self.gpus.tolist(), self.spread.tolist())
        return list(zip(*columns, strict=True))

    def __post_init__(self) -> None:
        shapes = self.shapes()
        if shapes != sorted(shapes):
            raise ValueError("options are ordered by GPU type, GPUs and spread")
