"""Free GPUs by type and node size, without node names: enough to decide what fits."""

from collections.abc import Sequence

from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.estimates.oracle import Shape


class FreeGpus:
    """Number of nodes with 0, 1, 2, ... free GPUs, for each GPU type.

    A packed placement uses as few nodes as possible: the node with the fewest sufficient free GPUs,
    or whole nodes and a rest if no node is large enough. A spread placement uses any free GPUs.
    With `emptiest`, a placement in one node uses the node with the most free GPUs instead.
    `Machines` chooses real nodes by the same rule, so a shape that fits here fits there.
    """

    __slots__ = ("by_type", "emptiest", "nodes_with")

    def __init__(self, nodes_with: Sequence[Sequence[int]], *, emptiest: bool = False) -> None:
        self.emptiest = emptiest
        self.nodes_with = [list(counts) for counts in nodes_with]
        self.by_type = [
            sum(free * nodes for free, nodes in enumerate(counts)) for counts in self.nodes_with
        ]

    @classmethod
    def of_all(cls, cluster: Cluster) -> "FreeGpus":
        nodes_with = [
            [0] * (cluster.gpus_per_node(number) + 1) for number in range(len(cluster.types))
        ]
        for group, number in zip(cluster.node_groups, cluster.node_types, strict=True):
            nodes_with[number][group.gpus_per_node] += 1
        return cls(nodes_with)

    def copy(self) -> "FreeGpus":
        twin = FreeGpus.__new__(FreeGpus)
        twin.emptiest = self.emptiest
        twin.nodes_with = [counts.copy() for counts in self.nodes_with]
        twin.by_type = self.by_type.copy()
        return twin

    @property
    def total(self) -> int:
        return sum(self.by_type)

    def fits(self, shape: Shape) -> bool:
        """Return True if a placement of this shape could start now."""
        type_index, gpus, spread = shape
        if self.by_type[type_index] < gpus:
            return False
        if spread or gpus == 1:
            return True
        counts = self.nodes_with[type_index]
        largest = len(counts) - 1
        if gpus <= largest:
            return any(counts[gpus:])
        whole, rest = divmod(gpus, largest)
        if counts[largest] < whole:
            return False
        return rest == 0 or counts[largest] > whole or any(counts[rest:largest])

    def take(self, shape: Shape) -> list[int]:
        """Allocate a shape; return the previous free counts of the nodes used.

        Raises:
            ValueError: the shape does not fit.
        """
        type_index, gpus, spread = shape
        if not self.fits(shape):
            raise ValueError(f"{gpus} GPUs of type {type_index} are not free")
        counts = self.nodes_with[type_index]
        self.by_type[type_index] -= gpus
        sizes = range(gpus, len(counts))
        for had in reversed(sizes) if self.emptiest else sizes:
            if counts[had]:
                counts[had] -= 1
                counts[had - gpus] += 1
                return [had]
        taken: list[int] = []
        left = gpus
        while left:
            had = self._next_node(counts, left, spread)
            part = min(had, left)
            counts[had] -= 1
            counts[had - part] += 1
            taken.append(had)
            left -= part
        return taken

    def give(self, type_index: int, gpus: int, free_before: int) -> None:
        """Free GPUs of a node that had `free_before` free ones."""
        counts = self.nodes_with[type_index]
        counts[free_before] -= 1
        counts[free_before + gpus] += 1
        self.by_type[type_index] += gpus

    def _next_node(self, counts: list[int], left: int, spread: bool) -> int:
        largest = len(counts) - 1
        if left <= largest:
            for free in range(left, largest + 1):
                if counts[free]:
                    return free
        if not spread:
            return largest
        return next(free for free in range(largest, 0, -1) if counts[free])
