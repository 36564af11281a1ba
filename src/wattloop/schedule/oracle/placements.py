"""Which placements a kind of job could take on a cluster, before anybody asks what they cost."""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.jobs.kind import JobKind

__all__ = ["Placements", "placements_of"]

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
