"""Placement query of the oracle service: placements in the terms of other schedulers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import Gpu, gpu_of_table
from wattloop.predict.prediction import Placement
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.estimates.oracle import placements_of
from wattloop.schedule.jobs.kind import JobKind


@dataclass(frozen=True, slots=True)
class PlacementQuery:
    """GPUs of one type with their power limit and network.

    Attributes:
        gpu: name in the hardware table or, with a cluster, of its GPU type.
        gpus: number of GPUs.
        cap_w: power limit of each; None for the factory limit.
        gpus_per_node: more GPUs than this communicate over the network.
        network_bytes_s: bandwidth between two nodes.
        spread: on more nodes than necessary.
    """

    gpu: str
    gpus: int = 1
    cap_w: float | None = None
    gpus_per_node: int = 8
    network_bytes_s: float = 25e9
    spread: bool = False

    def placement(self, gpu: Gpu) -> Placement:
        """Convert to a placement of `predict` with the named GPU.

        Raises:
            ConfigError: the GPU does not accept the power limit.
        """
        if self.cap_w is not None and not gpu.cap_min_w <= self.cap_w <= gpu.cap_max_w:
            raise ConfigError(
                f"cap_w {self.cap_w:g}: the {gpu.product} can be set to {gpu.cap_min_w:g} to "
                f"{gpu.cap_max_w:g} W"
            )
        return Placement(
            gpu=gpu,
            gpus=self.gpus,
            cap_w=self.cap_w,
            gpus_per_node=1 if self.spread else self.gpus_per_node,
            network_bytes_s=self.network_bytes_s,
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "gpu": self.gpu,
            "gpus": self.gpus,
            "cap_w": self.cap_w,
            "spread": self.spread,
        }


def known_places(places: Sequence[PlacementQuery]) -> list[Placement | str]:
    """Convert each to a placement of `predict`, or to an error message."""
    gpus: dict[str, Gpu | str] = {}
    known: dict[PlacementQuery, Placement | str] = {}
    for where in places:
        if where.gpu not in gpus:
            gpus[where.gpu] = _gpu(where.gpu)
        gpu = gpus[where.gpu]
        if isinstance(gpu, str):
            known[where] = gpu
        elif where not in known:
            try:
                known[where] = where.placement(gpu)
            except ConfigError as error:
                known[where] = str(error)
    return [known[where] for where in places]


def places_of(kind: JobKind, cluster: Cluster) -> list[tuple[PlacementQuery, Placement]]:
    """Return all placements of a kind on a cluster, without regard to the batch."""
    rows = placements_of(kind, cluster)
    found: dict[PlacementQuery, Placement] = {}
    for number, gpus, spread, cap_w in zip(
        rows.type_index.tolist(),
        rows.gpus.tolist(),
        rows.spread.tolist(),
        rows.cap_w.tolist(),
        strict=True,
    ):
        gpu_type = cluster.types[number]
        per_node = cluster.gpus_per_node(number)
        where = PlacementQuery(
            gpu_type.name, gpus, cap_w, per_node, cluster.network_bytes_s, spread
        )
        found[where] = Placement(
            gpu=gpu_type.gpu,
            gpus=gpus,
            cap_w=cap_w,
            link_bytes_s=gpu_type.link_bytes_s,
            gpus_per_node=1 if spread else per_node,
            network_bytes_s=cluster.network_bytes_s,
        )
    return list(found.items())


def _gpu(name: str) -> Gpu | str:
    try:
        return gpu_of_table(name)
    except ConfigError as error:
        return str(error)
