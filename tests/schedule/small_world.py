"""A cluster, jobs and an oracle small enough to check by hand."""

from collections.abc import Sequence

import numpy as np

from wattloop.hardware.gpus import gpu_named
from wattloop.schedule.cluster import Cluster, GpuType, NodeGroup
from wattloop.schedule.estimates.oracle import Oracle, PlacementOptions
from wattloop.schedule.jobs import JobKind, JobTable

IDLE_W = 50.0
BUSY_W = 300.0


class PlainOracle(Oracle):
    """An oracle: k GPUs take 1/k second per sample and draw 300 W each at full cap, on any type."""

    name = "plain"

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[JobKind, PlacementOptions] = {}

    def options(self, kind: JobKind) -> PlacementOptions:
        """Return every type x GPUs x batch x cap; a cap slows down in proportion to its root."""
        if kind not in self._known:
            rows = [
                (number, gpus, batch, cap)
                for number, each in enumerate(self._cluster.types)
                if not kind.types or each.name in kind.types
                for gpus in kind.gpus
                for batch in kind.batches
                for cap in kind.caps
            ]
            columns = np.array(rows, dtype=float).reshape(-1, 4).T
            gpus, cap = columns[1], columns[3]
            self._known[kind] = PlacementOptions(
                type_index=columns[0].astype(np.int64),
                gpus=gpus.astype(np.int64),
                batch=columns[2].astype(np.int64),
                cap_w=cap * 400.0,
                spread=np.zeros(len(rows), dtype=bool),
                sample_s=1.0 / (gpus * np.sqrt(cap)),
                power_w=gpus * BUSY_W * cap,
                step_s=columns[2] / np.sqrt(cap),
            )
        return self._known[kind]


def small_cluster(nodes: int = 1, gpus_per_node: int = 2, **group: float) -> Cluster:
    """Return nodes with A100s that draw 50 W each when idle."""
    gpu = gpu_named("a100-sxm-40")
    groups = (NodeGroup("node", "a100", nodes, gpus_per_node, **group),)
    return Cluster("small", (GpuType("a100", gpu, IDLE_W),), groups)


def jobs_of(
    rows: Sequence[tuple[float, float]],
    *,
    kind: JobKind | None = None,
    deadlines_s: Sequence[float] | None = None,
    users: Sequence[int] | None = None,
) -> JobTable:
    """Return jobs from (arrival, samples); one GPU each unless the kind says otherwise."""
    owner = np.array(users if users is not None else [0] * len(rows), dtype=np.int64)
    late = deadlines_s if deadlines_s is not None else [np.inf] * len(rows)
    return JobTable(
        kinds=(kind or JobKind("toy"),),
        users=tuple(f"user-{number}" for number in range(int(owner.max(initial=0)) + 1)),
        arrival_s=np.array([row[0] for row in rows], dtype=float),
        kind=np.zeros(len(rows), dtype=np.int64),
        user=owner,
        work=np.array([row[1] for row in rows], dtype=float),
        deadline_s=np.array(late, dtype=float),
        priority=np.zeros(len(rows), dtype=np.int64),
    )
