"""Which GPUs of which nodes are free, and who gets them."""

from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.free_gpus import FreeGpus
from wattloop.schedule.oracle.options import Shape

__all__ = ["Machines"]

Nodes = tuple[tuple[int, int], ...]


class Machines:
    """Nodes of a cluster; GPUs of a node are bits of a mask.

    Args:
        cluster: as built; all of it is free and up at first.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.node_type = cluster.node_types
        sizes = [group.gpus_per_node for group in cluster.node_groups]
        self.free_mask = [(1 << size) - 1 for size in sizes]
        self.is_up = [True] * len(sizes)
        largest = [cluster.gpus_per_node(index) for index in range(len(cluster.types))]
        # Dictionaries keep the order of insertion: the same events give the same machines.
        self._with: list[list[dict[int, None]]] = [
            [{} for _ in range(size + 1)] for size in largest
        ]
        for node, size in enumerate(sizes):
            self._with[self.node_type[node]][size][node] = None
        self.free = FreeGpus([[len(nodes) for nodes in each] for each in self._with])

    def take(self, shape: Shape) -> Nodes:
        """GPUs for a placement: (node, mask of its GPUs there) for each node.

        Raises:
            ValueError: they are not free.
        """
        type_index, left, _ = shape
        nodes_with = self._with[type_index]
        taken = []
        for had in self.free.take(shape):
            node = next(iter(nodes_with[had]))
            part = min(had, left)
            left -= part
            mask = self.free_mask[node]
            rest = mask
            for _ in range(part):
                rest &= rest - 1  # clears the lowest bit
            self.free_mask[node] = rest
            del nodes_with[had][node]
            nodes_with[had - part][node] = None
            taken.append((node, mask ^ rest))
        return tuple(taken)

    def give(self, nodes: Nodes) -> None:
        """GPUs that are free again. Those of a node that is down stay away until it is back."""
        for node, mask in nodes:
            before = self.free_mask[node].bit_count()
            self.free_mask[node] |= mask
            if self.is_up[node]:
                after = self.free_mask[node].bit_count()
                nodes_with = self._with[self.node_type[node]]
                del nodes_with[before][node]
                nodes_with[after][node] = None
                self.free.give(self.node_type[node], after - before, before)

    def put_down(self, node: int) -> None:
        """A node dies; whoever ran there has to be stopped."""
        free = self.free_mask[node].bit_count()
        self.is_up[node] = False
        del self._with[self.node_type[node]][free][node]
        self.free.nodes_with[self.node_type[node]][free] -= 1
        self.free.by_type[self.node_type[node]] -= free

    def put_up(self, node: int) -> None:
        """A node is back."""
        free = self.free_mask[node].bit_count()
        self.is_up[node] = True
        self._with[self.node_type[node]][free][node] = None
        self.free.nodes_with[self.node_type[node]][free] += 1
        self.free.by_type[self.node_type[node]] += free
