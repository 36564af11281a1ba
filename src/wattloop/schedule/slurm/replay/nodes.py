"""Which node of a real Slurm stands for which node of a scenario."""

import re
from collections.abc import Callable
from typing import NamedTuple

from wattloop.core.errors import ConfigError
from wattloop.schedule.cluster.cluster import Cluster

__all__ = ["matched_nodes"]

GPUS = re.compile(r"gpu(?::([\w.-]+))?:(\d+)")


class _Node(NamedTuple):
    name: str
    gpu_type: str
    gpus: int
    state: str


def matched_nodes(
    cluster: Cluster, slurm: Callable[..., str], partition: str = ""
) -> dict[int, str]:
    """Node number of the cluster -> name of a Slurm node with as many GPUs of that type.

    Args:
        cluster: the scenario's.
        slurm: runs one of Slurm's commands.
        partition: only its nodes; all unless given.

    Raises:
        ConfigError: Slurm has not enough such nodes; says which it has.
    """
    found = _nodes(slurm, partition)
    left = list(found)
    names: dict[int, str] = {}
    for number, group in enumerate(cluster.node_groups):
        wanted = (group.type_name.lower(), group.gpus_per_node)
        node = next((each for each in left if (each.gpu_type, each.gpus) == wanted), None)
        if node is None:
            has = ", ".join(f"{n.name} ({n.gpus} x {n.gpu_type or 'gpu'})" for n in found) or "none"
            raise ConfigError(
                f"the scenario is wider than this Slurm: node {cluster.node_names[number]} has "
                f"{group.gpus_per_node} x {group.type_name}, and no node is left that does; Slurm "
                f"has {has}. Change the scenario's cluster, or Gres= in slurm.conf"
            )
        left.remove(node)
        names[number] = node.name
    return names


def _nodes(slurm: Callable[..., str], partition: str) -> list[_Node]:
    """Nodes that are up, by name."""
    only = ("-p", partition) if partition else ()
    found: dict[str, _Node] = {}
    for line in slurm("sinfo", "-h", "-N", *only, "-o", "%N|%G|%t").splitlines():
        name, _, rest = line.strip().partition("|")
        gres, _, state = rest.partition("|")
        match = GPUS.search(gres)
        if state.rstrip("*~#!%$@^-").startswith(("down", "drain", "fail", "unk")) or "*" in state:
            continue
        found[name] = _Node(
            name,
            (match[1] or "").lower() if match else "",
            int(match[2]) if match else 0,
            state,
        )
    return list(found.values())
