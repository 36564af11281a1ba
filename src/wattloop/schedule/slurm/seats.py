"""GPUs of nodes as bits of a mask, given to jobs by count: which ones is Slurm's own business."""

from collections.abc import Iterable

from wattloop.schedule.engine.machines import Nodes
from wattloop.schedule.slurm.known_nodes import KnownNodes

__all__ = ["Seats"]


class Seats:
    """Who has how many GPUs where.

    Attributes:
        taken: node -> bit mask of GPUs that are not free.
    """

    def __init__(self, known: KnownNodes) -> None:
        self._known = known
        self.taken: dict[int, int] = {}

    def take(self, placed: Iterable[tuple[str, int]]) -> Nodes:
        """GPUs of a job on its nodes; those of nodes that are not ours are left out."""
        found = []
        for name, gpus in placed:
            node = self._known.numbers.get(name)
            if node is not None and (mask := self._take(node, gpus)):
                found.append((node, mask))
        return tuple(found)

    def reserve(self, names: Iterable[str], gpus: int) -> Nodes:
        """GPUs for a job that is about to start: on these nodes, or wherever some are free."""
        found, left = [], gpus
        for name in tuple(names) or self._known.names:
            node = self._known.numbers.get(name)
            if node is not None and left and (mask := self._take(node, left)):
                found.append((node, mask))
                left -= mask.bit_count()
        return tuple(found)

    def give(self, nodes: Nodes) -> None:
        """GPUs that are free after all."""
        for node, mask in nodes:
            self.taken[node] &= ~mask

    def _take(self, node: int, gpus: int) -> int:
        size = self._known.cluster.node_groups[node].gpus_per_node
        had, mask = self.taken.get(node, 0), 0
        for number in range(size):
            if mask.bit_count() < gpus and not (had >> number) & 1:
                mask |= 1 << number
        self.taken[node] = had | mask
        return mask
