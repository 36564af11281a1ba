"""A cluster: groups of like nodes with GPUs of one type, and the failures of nodes."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import Gpu


class NodeEvent(NamedTuple):
    """A node dies or comes back."""

    time_s: float
    node: int
    is_up: bool


class Outage(NamedTuple):
    """A node is away from `begin_s` until just before `end_s`."""

    begin_s: float
    end_s: float
    node: int


@dataclass(frozen=True, slots=True)
class Failures:
    """What befalls the nodes of a cluster.

    Attributes:
        outages: known ones, such as planned maintenance.
        mtbf_s: mean time of each node from its repair to its next failure; None for no more
            failures than those listed.
        mttr_s: mean time of a repair.
        until_s: no failure is drawn after this time; infinite leaves that to the horizon.
    """

    outages: tuple[Outage, ...] = ()
    mtbf_s: float | None = None
    mttr_s: float = 0.0
    until_s: float = float("inf")

    def events(self, nodes: int, horizon_s: float, seed: int) -> tuple[NodeEvent, ...]:
        """Failures and repairs up to the horizon, by time; a node alternates between the two.

        Times to failure and to repair are exponential. Each node has a stream of its own: more
        nodes or a longer horizon change nothing of what the others were going to suffer.

        Raises:
            ValueError: failures are drawn without end, because neither horizon nor `until_s` is
                finite.
        """
        last_s = min(horizon_s, self.until_s)
        if self.mtbf_s is not None and last_s == float("inf"):
            raise ValueError("failures without end: give a horizon, or failures.until")
        found: list[NodeEvent] = []
        for node in range(nodes):
            mine = [each for each in self.outages if each.node == node and each.end_s > 0]
            for begin_s, end_s in _merged([*mine, *self._drawn(node, last_s, seed)]):
                if begin_s < horizon_s:
                    found.append(NodeEvent(begin_s, node, is_up=False))
                if end_s < horizon_s:
                    found.append(NodeEvent(end_s, node, is_up=True))
        # Of two at one time the repair comes first: a node more can only help.
        found.sort(key=lambda event: (event.time_s, not event.is_up, event.node))
        return tuple(found)

    def _drawn(self, node: int, last_s: float, seed: int) -> Iterator[Outage]:
        if self.mtbf_s is None:
            return
        dice = random.Random(f"wattloop failures {seed} {node}")
        time_s = dice.expovariate(1 / self.mtbf_s)
        while time_s < last_s:
            repair_s = dice.expovariate(1 / self.mttr_s) if self.mttr_s else 0.0
            yield Outage(time_s, time_s + repair_s, node)
            time_s += repair_s + dice.expovariate(1 / self.mtbf_s)


def _merged(outages: Sequence[Outage]) -> Iterable[tuple[float, float]]:
    """Stretches during which a node is away, without overlaps; those of no length left out."""
    merged: list[tuple[float, float]] = []
    for begin_s, end_s, _ in sorted(outages):
        if end_s <= begin_s:
            continue
        if merged and begin_s <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end_s))
        else:
            merged.append((begin_s, end_s))
    return merged


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
