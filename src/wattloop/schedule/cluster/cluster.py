"""A cluster as the scheduler knows it: groups of like nodes, each with GPUs of one type."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from wattloop.hardware.gpus import Gpu

__all__ = ["Cluster", "GpuType", "NodeGroup"]


@dataclass(frozen=True, slots=True)
class GpuType:
    """One kind of GPU of the cluster.

    Attributes:
        name: what jobs, traces and figures call it, such as `a100`.
        gpu: what the maker says of it.
        idle_w: drawn by one GPU that runs nothing.
    """

    name: str
    gpu: Gpu
    idle_w: float

    @property
    def tdp_w(self) -> float:
        """Power limit of one GPU as it comes from the factory."""
        return self.gpu.tdp_w

    def cap_w(self, share: float) -> float:
        """The power limit that is `share` of the factory's, kept within what the GPU allows."""
        return min(max(share * self.gpu.tdp_w, self.gpu.cap_min_w), self.gpu.cap_max_w)


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Like nodes.

    Attributes:
        name: of the group; nodes are called `name-0`, `name-1`, ...
        type_name: GPU type of all its GPUs.
        nodes: how many.
        gpus_per_node: GPUs of each.
        host_w: drawn by one node beside its GPUs, whatever they do.
        host_busy_w_per_gpu: what host and memory draw more for each GPU at work.
    """

    name: str
    type_name: str
    nodes: int
    gpus_per_node: int
    host_w: float = 0.0
    host_busy_w_per_gpu: float = 0.0


@dataclass(frozen=True)
class Cluster:
    """Groups of nodes and what joins them.

    Attributes:
        name: for tables and files.
        types: every GPU type that a group names.
        groups: the nodes, in order: node numbers count through them.
        network_w: drawn by switches, always.
        network_bytes_s: bandwidth of a node towards another, one way.
        sources: field -> where its figure comes from.
    """

    name: str
    types: tuple[GpuType, ...]
    groups: tuple[NodeGroup, ...]
    network_w: float = 0.0
    network_bytes_s: float = 25e9
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    @cached_property
    def node_groups(self) -> tuple[NodeGroup, ...]:
        """The group of every node, by node number."""
        return tuple(group for group in self.groups for _ in range(group.nodes))

    @cached_property
    def node_names(self) -> tuple[str, ...]:
        """The name of every node, by node number."""
        return tuple(f"{group.name}-{i}" for group in self.groups for i in range(group.nodes))

    @cached_property
    def node_types(self) -> tuple[int, ...]:
        """The GPU type of every node, as an index into `types`."""
        index = {kind.name: number for number, kind in enumerate(self.types)}
        return tuple(index[group.type_name] for group in self.node_groups)

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return sum(group.nodes * group.gpus_per_node for group in self.groups)

    @cached_property
    def gpus_by_type(self) -> tuple[int, ...]:
        """GPUs of each type, in the order of `types`."""
        return tuple(
            sum(g.nodes * g.gpus_per_node for g in self.groups if g.type_name == kind.name)
            for kind in self.types
        )

    def gpus_per_node(self, type_index: int) -> int:
        """GPUs of the largest node of a type: what one job can have without the network."""
        name = self.types[type_index].name
        return max(g.gpus_per_node for g in self.groups if g.type_name == name)

    @cached_property
    def idle_w(self) -> float:
        """Power of the whole cluster when nothing runs: GPUs, hosts and network."""
        index = {kind.name: kind for kind in self.types}
        nodes_w = sum(
            g.nodes * (g.host_w + g.gpus_per_node * index[g.type_name].idle_w) for g in self.groups
        )
        return nodes_w + self.network_w
