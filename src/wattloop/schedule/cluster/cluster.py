"""Cluster: groups of identical nodes with GPUs of one type, and failures of nodes."""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import Gpu


class NodeEvent(NamedTuple):
    """Failure or repair of a node."""

    time_s: float
    node: int
    is_up: bool


class Outage(NamedTuple):
    """Outage of a node from `begin_s` until just before `end_s`."""

    begin_s: float
    end_s: float
    node: int


@dataclass(frozen=True, slots=True)
class Failures:
    """Failures of the nodes of a cluster.

    Attributes:
        outages: known outages, such as planned maintenance.
        mtbf_s: mean time of each node from its repair to its next failure; None for no more
            failures than those listed.
        until_s: no failure is drawn after this time; infinite leaves that to the horizon.
    """

    outages: tuple[Outage, ...] = ()
    mtbf_s: float | None = None
    mttr_s: float = 0.0
    until_s: float = float("inf")

    def events(self, nodes: int, horizon_s: float, seed: int) -> tuple[NodeEvent, ...]:
        """Draw failures and repairs up to the horizon, by time; a node alternates between them.

        Times to failure and to repair are exponential. Each node has its own random stream, so more
        nodes or a longer horizon do not change the failures of the others.

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
        # Of two events at the same time, the repair comes first.
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
    """Merge overlapping outages of a node; drop empty ones."""
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
class SleepState:
    """Power-down state of an idle GPU, or of a node without a job.

    Attributes:
        power_w: power in this state; of a node, with its GPUs.
        enter_s, exit_s: duration of going to sleep and of waking up, without work.
        enter_j, exit_j: energy of both.
        after_s: idle time after which it is entered.
    """

    name: str
    power_w: float
    enter_s: float
    exit_s: float
    enter_j: float
    exit_j: float
    after_s: float

    @classmethod
    def of(
        cls,
        idle_w: float,
        power_w: float,
        enter_s: float,
        exit_s: float,
        *,
        name: str = "sleep",
        enter_j: float | None = None,
        exit_j: float | None = None,
        after_s: float | None = None,
    ) -> "SleepState":
        """Create a state of a device that draws `idle_w`, above `power_w`, when awake.

        By default both transitions draw idle power, and the state is entered after its break-even
        time: the idle time in which sleeping takes as much energy as staying awake. No schedule
        without knowledge of the future has a smaller worst case than twice the least energy.
        """
        enter_j = idle_w * enter_s if enter_j is None else enter_j
        exit_j = idle_w * exit_s if exit_j is None else exit_j
        extra_j = enter_j + exit_j - power_w * (enter_s + exit_s)
        even_s = max(extra_j / (idle_w - power_w), enter_s + exit_s)
        return cls(
            name, power_w, enter_s, exit_s, enter_j, exit_j, even_s if after_s is None else after_s
        )


@dataclass(frozen=True, slots=True)
class GpuType:
    """GPU type of the cluster.

    Attributes:
        name: name in jobs, traces and figures, such as `a100`.
        limit_w: power limit set by the cluster's operator; None for the factory limit.
        link_bytes_s: one-way bandwidth of one GPU to the others of its node; None for the bandwidth
            of the GPU's own link.
        exchange_w: power of a GPU while it only exchanges gradients; None for its power at rest.
        exchange_hop_s: time that each hop adds to an exchange of gradients
            (`predict.prediction.Placement`).
        sleeps: power-down states of an idle GPU, by `after_s`; used by policies that sleep.
    """

    name: str
    gpu: Gpu
    idle_w: float
    limit_w: float | None = None
    link_bytes_s: float | None = None
    exchange_w: float | None = None
    exchange_hop_s: float = 0.0
    sleeps: tuple[SleepState, ...] = ()

    @property
    def tdp_w(self) -> float:
        return self.gpu.tdp_w

    def cap_w(self, share: float) -> float:
        """Return `share` of the factory limit, clipped to the range of the GPU and the operator."""
        most_w = self.gpu.cap_max_w if self.limit_w is None else self.limit_w
        return min(max(share * self.gpu.tdp_w, self.gpu.cap_min_w), most_w)


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Group of identical nodes, called `name-0`, `name-1`, ...

    Attributes:
        host_w: constant power of one node in addition to its GPUs.
        host_busy_w_per_gpu: additional power of host and memory for each busy GPU.
        sleeps: power-down states of a node without a job, by `after_s`.
    """

    name: str
    type_name: str
    nodes: int
    gpus_per_node: int
    host_w: float = 0.0
    host_busy_w_per_gpu: float = 0.0
    sleeps: tuple[SleepState, ...] = ()


@dataclass(frozen=True)
class Cluster:
    """Groups of nodes and their network.

    Attributes:
        network_w: constant power of the switches.
        network_bytes_s: one-way bandwidth between two nodes.
        hop_s: latency of one hop of a ring of GPUs; None for a few microseconds.
        sources: field -> source of its figure.
    """

    name: str
    types: tuple[GpuType, ...]
    groups: tuple[NodeGroup, ...]
    network_w: float = 0.0
    network_bytes_s: float = 25e9
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)
    failures: Failures | None = None
    hop_s: float | None = None

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

    @cached_property
    def node_groups(self) -> tuple[NodeGroup, ...]:
        """Group of every node, by node number."""
        return tuple(group for group in self.groups for _ in range(group.nodes))

    @cached_property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"{group.name}-{i}" for group in self.groups for i in range(group.nodes))

    @cached_property
    def node_types(self) -> tuple[int, ...]:
        """GPU type of every node, as an index into `types`."""
        index = {kind.name: number for number, kind in enumerate(self.types)}
        return tuple(index[group.type_name] for group in self.node_groups)

    @property
    def gpus(self) -> int:
        return sum(group.nodes * group.gpus_per_node for group in self.groups)

    @cached_property
    def gpus_by_type(self) -> tuple[int, ...]:
        return tuple(
            sum(g.nodes * g.gpus_per_node for g in self.groups if g.type_name == kind.name)
            for kind in self.types
        )

    @property
    def can_sleep(self) -> bool:
        """True if a GPU or node has a power-down state."""
        return any(each.sleeps for each in self.types) or any(each.sleeps for each in self.groups)

    @cached_property
    def wake_s(self) -> float:
        """Longest time until a sleeping GPU, or a GPU of a sleeping node, is awake."""
        states = [each.sleeps for each in self.types] + [each.sleeps for each in self.groups]
        return max((each.enter_s + each.exit_s for each in chain(*states)), default=0.0)

    @cached_property
    def resting_w(self) -> tuple[float, ...]:
        """Power of a GPU that is idle for long, by type: in its deepest state, or its node's."""
        found = []
        for kind in self.types:
            watts = [kind.idle_w, *(state.power_w for state in kind.sleeps)]
            groups = [each for each in self.groups if each.type_name == kind.name]
            if all(each.sleeps for each in groups):
                watts.append(max(each.sleeps[-1].power_w / each.gpus_per_node for each in groups))
            found.append(min(watts))
        return tuple(found)

    def gpus_per_node(self, type_index: int) -> int:
        """Return the GPUs of the largest node of a type: the most that a job gets within a node."""
        name = self.types[type_index].name
        return max(g.gpus_per_node for g in self.groups if g.type_name == name)

    @cached_property
    def idle_w(self) -> float:
        """Power of the idle cluster: GPUs, hosts and network."""
        index = {kind.name: kind for kind in self.types}
        nodes_w = sum(
            g.nodes * (g.host_w + g.gpus_per_node * index[g.type_name].idle_w) for g in self.groups
        )
        return nodes_w + self.network_w
