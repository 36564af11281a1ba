"""A cluster as the scheduler knows it: groups of like nodes, each with GPUs of one type."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import Gpu
from wattloop.schedule.cluster.failures import Failures

__all__ = ["Cluster", "GpuType", "NodeGroup"]


@dataclass(frozen=True, slots=True)
class GpuType:
    """One kind of GPU of the cluster.

    Attributes:
        name: what jobs, traces and figures call it, such as `a100`.
        gpu: what the maker says of it.
        idle_w: drawn by one GPU that runs nothing.
        limit_w: most power that whoever runs the cluster lets one draw; None is the factory's.
        link_bytes_s: bandwidth of one GPU towards its neighbours in a node, one way; None is that
            of the GPU's own link.
    """

    name: str
    gpu: Gpu
    idle_w: float
    limit_w: float | None = None
    link_bytes_s: float | None = None

    @property
    def tdp_w(self) -> float:
        """Power limit of one GPU as it comes from the factory."""
        return self.gpu.tdp_w

    def cap_w(self, share: float) -> float:
        """The power limit that is `share` of the factory's, within what GPU and operator allow."""
        most_w = self.gpu.cap_max_w if self.limit_w is None else self.limit_w
        return min(max(share * self.gpu.tdp_w, self.gpu.cap_min_w), most_w)


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
        failures: what befalls its nodes; None for nothing.
    """

    name: str
    types: tuple[GpuType, ...]
    groups: tuple[NodeGroup, ...]
    network_w: float = 0.0
    network_bytes_s: float = 25e9
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    failures: Failures | None = None

    def __post_init__(self) -> None:
        known = {kind.name for kind in self.types}
        for group in self.groups:
            if group.type_name not in known:
                raise ConfigError(
                    f"cluster {self.name}: group '{group.name}' has GPUs of type "
                    f"'{group.type_name}', which is none of {', '.join(sorted(known))}"
                )
            if group.nodes < 1 or group.gpus_per_node < 1:
                raise ConfigError(f"cluster {self.name}: group '{group.name}' has no GPU")

    def with_failures(self, failures: Failures | None) -> "Cluster":
        """The same machines, with another fate."""
        return replace(self, failures=failures)

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
