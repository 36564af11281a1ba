"""Machines as they are now: who has which GPU of which node."""

from collections.abc import Mapping, Sequence

from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.engine.machines import Machines
from wattloop.schedule.free_gpus import FreeGpus

__all__ = ["occupied"]


def occupied(cluster: Cluster, taken: Mapping[int, int], is_up: Sequence[bool]) -> Machines:
    """Machines with some GPUs taken and some nodes away.

    Args:
        cluster: as built.
        taken: node -> bit mask of GPUs that are not free.
        is_up: of every node.
    """
    machines = Machines(cluster)
    for each in machines.nodes_with:
        for nodes in each:
            nodes.clear()
    for node in reversed(range(len(machines.sizes))):  # the last one in is the first one out
        machines.free_mask[node] &= ~taken.get(node, 0)
        machines.is_up[node] = is_up[node]
        if is_up[node]:
            free = machines.free_mask[node].bit_count()
            machines.nodes_with[machines.node_type[node]][free][node] = None
    machines.free = FreeGpus([[len(nodes) for nodes in each] for each in machines.nodes_with])
    return machines
