"""An oracle by formula, and a cluster, for tests of workloads."""

import numpy as np

from wattloop.hardware.gpus import gpu_named
from wattloop.schedule.cluster import Cluster, GpuType, NodeGroup
from wattloop.schedule.estimates.oracle import Oracle, PlacementOptions
from wattloop.schedule.jobs import JobKind

SPEED = {"v100": 100.0, "a100": 200.0}
"""Samples per second of one GPU at batch 1."""


def made_cluster(nodes: int = 2) -> Cluster:
    types = tuple(GpuType(name, gpu_named(name), 50.0) for name in SPEED)
    groups = tuple(NodeGroup(name, name, nodes, 8) for name in SPEED)
    return Cluster("made", types, groups)


class MadeOracle(Oracle):
    """An oracle with speed ~ gpus^0.9 batch^0.1 / sqrt(cap), and 512 as the largest batch."""

    name = "made"

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.asked: dict[JobKind, PlacementOptions] = {}

    def options(self, kind: JobKind) -> PlacementOptions:
        if kind not in self.asked:
            self.asked[kind] = self._made(kind)
        return self.asked[kind]

    def _made(self, kind: JobKind) -> PlacementOptions:
        rows = [
            (number, gpus, batch, gpu.cap_w(cap), gpus**0.9 * batch**0.1 * cap**0.5)
            for number, gpu in enumerate(self.cluster.types)
            if not kind.types or gpu.name in kind.types
            for gpus in sorted(kind.gpus)
            if gpus <= self.cluster.gpus_by_type[number]
            for batch in kind.batches
            if batch <= 512
            for cap in kind.caps
        ]
        type_index, gpus, batch, cap_w, speed = (
            np.array([row[n] for row in rows], float) for n in range(5)
        )
        names = [self.cluster.types[int(each)].name for each in type_index]
        sample_s = 1 / (speed * np.array([SPEED[name] for name in names]))
        return PlacementOptions(
            type_index.astype(np.int64),
            gpus.astype(np.int64),
            batch.astype(np.int64),
            cap_w,
            np.zeros(len(rows), bool),
            sample_s,
            gpus * cap_w,
            sample_s * gpus * batch,
        )
