"""Slurm's nodes as a cluster, with GPU types from the hardware table or the operator's file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wattloop.core.errors import ConfigError, SlurmError
from wattloop.hardware.gpus import gpu_named, variant_assumed
from wattloop.predict.cap_curve import static_power
from wattloop.schedule.cluster.cluster import Cluster, GpuType, NodeGroup
from wattloop.schedule.cluster.file import typical_host
from wattloop.schedule.slurm.squeue import parse_gpus

# Fields of Slurm's JSON; a field of the wrong type becomes the default. Slurm 22.05 writes one
# word where later versions write a list.

LONGEST = 10_000
"""Longest text that is read from a field."""


def _text(data: Mapping[str, Any], name: str) -> str:
    """Return a text field; empty when it is missing or not a text."""
    value = data.get(name)
    if isinstance(value, list) and value and isinstance(value[0], str):
        value = value[0]
    return value[:LONGEST] if isinstance(value, str) else ""


def _words(data: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return a field that is a list of words or a single word."""
    value = data.get(name)
    if isinstance(value, str):
        return (value,)
    return tuple(word for word in value if isinstance(word, str)) if isinstance(value, list) else ()


AWAY = (
    "DOWN", "DRAIN", "DRAINED", "FAIL", "FAILING", "MAINTENANCE", "MAINT", "NOT_RESPONDING",
    "POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "REBOOT", "REBOOT_ISSUED", "UNKNOWN", "FUTURE",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SlurmNode:
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


def nodes_from(data: Any) -> list[SlurmNode]:
    """Parse the nodes in the output of `sinfo --json`."""
    listed = data.get("nodes") if isinstance(data, Mapping) else None
    if not isinstance(listed, list):
        raise SlurmError("Slurm: 'sinfo --json' gave no list of nodes")
    return [_node(each) for each in listed if isinstance(each, Mapping) and _text(each, "name")]


def _node(data: Mapping[str, Any]) -> SlurmNode:
    gpus = parse_gpus(_text(data, "gres"))
    states = {word.upper() for word in (*_words(data, "state"), *_words(data, "state_flags"))}
    return SlurmNode(
        _text(data, "name"),
        gpus.type_name,
        gpus.number,
        _words(data, "partitions"),
        not states & set(AWAY),
    )


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
    nodes: Sequence[SlurmNode],
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


def _type(node: SlurmNode, described: Cluster | None, sources: dict[str, str]) -> GpuType:
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
