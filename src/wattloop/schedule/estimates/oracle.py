"""The oracle contract: time and power of a job on every placement it may take."""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.jobs.kind import JobKind

Shape = tuple[int, int, bool]


"""What a placement needs of the machines: GPU type (index), GPUs, and whether it is spread."""


@dataclass(frozen=True, eq=False)
class PlacementOptions:
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


class Factors(NamedTuple):
    """What an oracle's answer for one job is off by, per option."""

    time: NDArray[np.float64]
    power: NDArray[np.float64]


class Oracle(ABC):
    """(kind of job, placement) -> time and power, for all placements of the kind at once."""

    name: str = ""

    @abstractmethod
    def options(self, kind: JobKind) -> PlacementOptions:
        """Every placement of the kind on this oracle's cluster; the same object every time.

        An empty table when there is none: the kind fits no GPU of the cluster.

        Raises:
            ConfigError: the oracle knows nothing of this kind; the message says what it knows.
        """

    def factors(self, job: int, kind: JobKind) -> Factors | None:
        """By what estimates for this very job differ from `options`; None for not at all."""
        del job, kind
        return None

    def factors_of(self, jobs: Sequence[int], kind: JobKind) -> Factors | None:
        """The same for many jobs of one kind: arrays (jobs, options)."""
        found = [each for job in jobs if (each := self.factors(job, kind)) is not None]
        if not found:
            return None
        return Factors(np.stack([f.time for f in found]), np.stack([f.power for f in found]))

    def fingerprint(self, kind: JobKind) -> Sequence[str] | None:
        """All that determines `options`, for a cache on disk; None when it cannot be told."""
        del kind
        return None

    @property
    def power_error(self) -> float:
        """Most that true power may exceed the estimate, as a share of the estimate."""
        return 0.0

    @property
    def time_error(self) -> float:
        """Most that true time may exceed the estimate, as a share of the estimate."""
        return 0.0


Row = tuple[int, int, bool, int, float]


@dataclass(frozen=True, slots=True, eq=False)
class Placements:
    """One row per placement, ordered by type, GPUs, spread, batch, and cap from high to low."""

    type_index: NDArray[np.int64]
    gpus: NDArray[np.int64]
    spread: NDArray[np.bool_]
    batch: NDArray[np.int64]
    cap_w: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.gpus)


def placements_of(kind: JobKind, cluster: Cluster) -> Placements:
    """Every placement that the cluster's machines allow, whatever their memory.

    Power limits are kept within what a GPU can be set to; shares that come to the same limit are
    one placement.
    """
    rows: list[Row] = []
    for type_index, gpu_type in enumerate(cluster.types):
        if kind.types and gpu_type.name not in kind.types:
            continue
        caps_w = sorted({round(gpu_type.cap_w(share), 3) for share in kind.caps}, reverse=True)
        batches = sorted(set(kind.batches))
        for gpus in sorted(set(kind.gpus)):
            for spread in _spreads(kind, cluster, type_index, gpus):
                rows += [
                    (type_index, gpus, spread, batch, cap_w)
                    for batch, cap_w in itertools.product(batches, caps_w)
                ]
    columns: list[tuple[Any, ...]] = list(zip(*rows, strict=True)) if rows else [()] * 5
    return Placements(
        type_index=np.array(columns[0], dtype=np.int64),
        gpus=np.array(columns[1], dtype=np.int64),
        spread=np.array(columns[2], dtype=np.bool_),
        batch=np.array(columns[3], dtype=np.int64),
        cap_w=np.array(columns[4], dtype=np.float64),
    )


def _spreads(kind: JobKind, cluster: Cluster, type_index: int, gpus: int) -> list[bool]:
    """Packed, spread, both or neither."""
    name = cluster.types[type_index].name
    if not 1 <= gpus <= cluster.gpus_by_type[type_index]:
        return []
    nodes = sum(group.nodes for group in cluster.groups if group.type_name == name)
    fewest = -(-gpus // cluster.gpus_per_node(type_index))
    return [False, True] if kind.may_spread and gpus > 1 and nodes > fewest else [False]
