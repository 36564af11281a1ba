"""Jobs and nodes as a scheduler lists them, and the nodes that a driver may use."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from wattloop.core.errors import ConfigError
from wattloop.hardware.gpus import gpu_named, variant_assumed
from wattloop.predict.cap_curve import static_power
from wattloop.schedule.cluster.cluster import Cluster, GpuType, NodeGroup
from wattloop.schedule.cluster.file import typical_host

HAS_MACHINES = (
    "RUNNING",
    "COMPLETING",
    "SUSPENDED",
    "CONFIGURING",
    "STOPPED",
    "SIGNALING",
    "STAGE_OUT",
)
NOT_YET = (
    "BeginTime", "Dependency", "DependencyNeverSatisfied", "JobHeldUser", "JobHeldAdmin",
    "JobArrayTaskLimit", "Licenses", "BadConstraints", "PartitionDown", "PartitionInactive",
    "PartitionTimeLimit", "PartitionNodeLimit", "AccountNotAllowed", "QOSNotAllowed",
    "InvalidAccount", "InvalidQOS", "DeadLine", "launch failed requeued held", "Cleaning",
)  # fmt: skip
"""Reasons of waiting that free nodes do not remove."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerJob:
    """Slurm job, or one task of an array. Its texts come from the user and are not trusted.

    Attributes:
        key: identifier for scontrol: `17`, or `17_3` for a task.
        number: job number on its nodes; the number of the array while a task waits.
        gpus, gpu_type: requested, all nodes together; the type is empty for any.
        gpus_per_node: requested on each node; 0 if requested in another way.
        nodes: fewest requested nodes.
        placed: (node name, GPUs there) while it has an allocation.
        required_nodes, features: constraints on its nodes.
        time_limit_s: None without one.
        submit_s, start_s: whole seconds since 1970; 0 before the event.
    """

    key: str
    state: str
    number: str = ""
    reason: str = ""
    user: str = ""
    name: str = ""
    account: str = ""
    partition: str = ""
    command: str = ""
    comment: str = ""
    admin_comment: str = ""
    reservation: str = ""
    gpus: int = 0
    gpu_type: str = ""
    gpus_per_node: int = 0
    nodes: int = 1
    placed: tuple[tuple[str, int], ...] = ()
    required_nodes: str = ""
    features: str = ""
    submit_s: float = 0.0
    start_s: float = 0.0
    time_limit_s: float | None = None
    deadline_s: float | None = None
    priority: int | None = None
    restarts: int = 0
    may_requeue: bool = True
    is_exclusive: bool = False

    @property
    def is_pending(self) -> bool:
        return self.state == "PENDING"

    @property
    def is_eligible(self) -> bool:
        """Return True if it waits for resources only, not for a time, another job or a hold."""
        return self.is_pending and self.priority != 0 and self.reason not in NOT_YET

    @property
    def has_machines(self) -> bool:
        """Return True while it has an allocation: starting, running or completing."""
        return self.state in HAS_MACHINES


Why = Literal["start", "standby", "pass", "ran"]
"""start: its GPUs are free. standby: they may become free before the next round. pass: a job that
the driver does not place. ran: it has started; if it returns to the queue, its changed fields are
restored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedJob:
    """Waiting job that the driver has released to start in its reservation.

    Attributes:
        nodes: requested nodes; empty leaves the choice to Slurm.
        cap_w: power cap of each GPU written for it; None for none.
        at_s: time of the release, seconds since 1970.
        undo: previous values of the changed fields.
    """

    key: str
    user: str
    why: Why
    nodes: tuple[str, ...] = ()
    gpus: int = 0
    cap_w: float | None = None
    at_s: float = 0.0
    undo: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SchedulerNode:
    """Slurm node.

    Attributes:
        gpu_type: empty where Slurm's configuration names none.
        is_up: the node accepts jobs.
    """

    name: str
    gpu_type: str
    gpus: int
    partitions: tuple[str, ...]
    is_up: bool


@dataclass(frozen=True)
class KnownNodes:
    """Nodes with GPUs that a driver may use.

    Attributes:
        cluster: cluster that policies see; node numbers are indices of `names`.
        names: Slurm's node names, by number.
        left_out: nodes of the managed partitions without a known GPU, and why.
    """

    cluster: Cluster
    names: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    numbers: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", {name: n for n, name in enumerate(self.names)})


def known_nodes(
    nodes: Sequence[SchedulerNode],
    partitions: Sequence[str],
    *,
    described: Cluster | None = None,
    count_hosts: bool = True,
) -> KnownNodes:
    """Build a cluster from the nodes of some partitions.

    Args:
        nodes: all nodes of Slurm.
        partitions: managed partitions.
        described: cluster of the operator's file, matched by Slurm's type names; its power and
            network replace those of the hardware table.
        count_hosts: add the power of a typical host where no file gives it.

    Raises:
        ConfigError: a partition is unknown, or none of its nodes has a known GPU.
    """
    there = {name for node in nodes for name in node.partitions}
    for name in partitions:
        if name not in there:
            raise ConfigError(f"Slurm: no partition {name!r}; there are {', '.join(sorted(there))}")
    members: dict[tuple[str, int], list[str]] = {}
    types: dict[str, GpuType] = {}
    left_out, sources = [], dict[str, str]()
    for node in nodes:
        if not set(node.partitions) & set(partitions):
            continue
        try:
            kind = types.get(node.gpu_type) or _type(node, described, sources)
        except ConfigError as error:
            left_out.append(f"{node.name}: {error}")
            continue
        types[node.gpu_type] = kind
        members.setdefault((node.gpu_type, node.gpus), []).append(node.name)
    if not members:
        why = left_out[0] if left_out else "they have no node"
        raise ConfigError(f"Slurm: no usable node in {', '.join(partitions)} ({why})")
    groups = [
        _group(types[name], gpus, len(found), described, sources, count_hosts=count_hosts)
        for (name, gpus), found in members.items()
    ]
    cluster = Cluster(
        name="slurm",
        types=tuple({kind.name: kind for kind in types.values()}.values()),
        groups=tuple(groups),
        network_w=described.network_w if described else 0.0,
        network_bytes_s=described.network_bytes_s if described else 25e9,
        sources=sources,
    )
    names = tuple(name for found in members.values() for name in found)
    return KnownNodes(cluster, names, tuple(left_out))


def _type(node: SchedulerNode, described: Cluster | None, sources: dict[str, str]) -> GpuType:
    if not node.gpus:
        raise ConfigError("has no GPU")
    if described is not None:
        for kind in described.types:
            if node.gpu_type in (kind.name.lower(), kind.gpu.name.lower()):
                return kind
        if not node.gpu_type and len(described.types) == 1:
            return described.types[0]
    if not node.gpu_type:
        raise ConfigError(
            "Slurm does not say which GPU it has; name the type in gres.conf (Type=a100), or "
            "describe the cluster with --cluster FILE"
        )
    gpu = gpu_named(node.gpu_type)
    idle = static_power(gpu)
    sources[f"{node.gpu_type}.idle_w"] = idle.source
    if assumed := variant_assumed(node.gpu_type):
        sources[f"{node.gpu_type}.gpu"] = assumed
    return GpuType(node.gpu_type, gpu, idle.watts)


def _group(
    kind: GpuType,
    gpus: int,
    nodes: int,
    described: Cluster | None,
    sources: dict[str, str],
    *,
    count_hosts: bool,
) -> NodeGroup:
    name = f"{kind.name}x{gpus}"
    of_type = [g for g in described.groups if g.type_name == kind.name] if described else []
    if of_type:
        like = next((each for each in of_type if each.gpus_per_node == gpus), of_type[0])
        return NodeGroup(name, kind.name, nodes, gpus, like.host_w, like.host_busy_w_per_gpu)
    if not count_hosts:
        sources[f"{name}.host_w"] = "not counted: GPUs only"
        return NodeGroup(name, kind.name, nodes, gpus)
    typical = typical_host(kind.gpu, gpus, kind.idle_w)
    sources[f"{name}.host_w"] = typical.source
    return NodeGroup(name, kind.name, nodes, gpus, typical.host_w, typical.busy_w_per_gpu)
