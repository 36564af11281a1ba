"""Free GPUs of every node, their allocation, and job kinds that can never run."""

from collections.abc import Iterable
from functools import partial
from typing import Protocol

from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.estimates.oracle import PlacementOptions, Shape
from wattloop.schedule.free_gpus import FreeGpus
from wattloop.schedule.jobs.kind import JobKind

Nodes = tuple[tuple[int, int], ...]
"""(node, bit mask of its GPUs), in the order of allocation."""


class GpuOrder(Protocol):
    """Order in which nodes and GPUs that are equal for a placement are allocated."""

    def most_awake(self, nodes: Iterable[int]) -> int: ...

    def without(self, node: int, mask: int, gpus: int) -> int: ...


class Machines:
    """Nodes of a cluster; GPUs of a node are bits of a mask.

    Nodes are grouped by their number of free GPUs, which is enough to choose one. Policies see the
    counts in `free`. The engine does not read them, so a policy that changes them misleads only
    itself.

    Args:
        emptiest: jobs of one node get the node with the most free GPUs, not the fewest.

    Attributes:
        order: which of equal GPUs are allocated first; by default the lowest numbers.
    """

    def __init__(self, cluster: Cluster, *, emptiest: bool = False) -> None:
        self.order: GpuOrder | None = None
        self.node_type = cluster.node_types
        self.sizes = [group.gpus_per_node for group in cluster.node_groups]
        self.free_mask = [(1 << size) - 1 for size in self.sizes]
        self.is_up = [True] * len(self.sizes)
        largest = [cluster.gpus_per_node(index) for index in range(len(cluster.types))]
        # Dictionaries keep the order of insertion, so the same events give the same machines.
        # `popitem` returns the last one in, so the first nodes are inserted last.
        self.nodes_with: list[list[dict[int, None]]] = [
            [{} for _ in range(size + 1)] for size in largest
        ]
        for node in reversed(range(len(self.sizes))):
            self.nodes_with[self.node_type[node]][self.sizes[node]][node] = None
        counts = [[len(nodes) for nodes in each] for each in self.nodes_with]
        self.free, self.emptiest = FreeGpus(counts, emptiest=emptiest), emptiest

    def take(self, shape: Shape) -> Nodes:
        """Allocate GPUs for a placement, by the rule of `FreeGpus`.

        Raises:
            ValueError: they are not free.
        """
        nodes = self.take_if_free(shape)
        if nodes is None:
            raise ValueError(f"{shape[1]} GPUs of type {shape[0]} are not free")
        return nodes

    def take_if_free(self, shape: Shape) -> Nodes | None:
        """Allocate GPUs for a placement; None, with nothing changed, if they are not free."""
        type_index, gpus, spread = shape
        nodes_with = self.nodes_with[type_index]
        sizes = range(gpus, len(nodes_with))
        for had in reversed(sizes) if self.emptiest else sizes:
            if nodes_with[had]:
                break
        else:
            return self._take_several(shape) if spread or gpus >= len(nodes_with) else None
        node = self._pop(nodes_with[had])
        nodes_with[had - gpus][node] = None
        free = self.free
        counts = free.nodes_with[type_index]
        counts[had] -= 1
        counts[had - gpus] += 1
        free.by_type[type_index] -= gpus
        mask = self.free_mask[node]
        if self.order is not None:
            rest = self.order.without(node, mask, gpus)
        else:
            rest = mask & (mask - 1) if gpus == 1 else _without(mask, gpus)
        self.free_mask[node] = rest
        return ((node, mask ^ rest),)

    def give(self, nodes: Nodes) -> None:
        """Free GPUs. Those of a node that is down stay unavailable until it is up."""
        for node, mask in nodes:
            had = self.free_mask[node]
            self.free_mask[node] = has = had | mask
            if self.is_up[node]:
                before, after = had.bit_count(), has.bit_count()
                type_index = self.node_type[node]
                nodes_with = self.nodes_with[type_index]
                del nodes_with[before][node]
                nodes_with[after][node] = None
                free = self.free
                counts = free.nodes_with[type_index]
                counts[before] -= 1
                counts[after] += 1
                free.by_type[type_index] += after - before

    def _pop(self, nodes: dict[int, None]) -> int:
        """Remove and return the next of equal nodes."""
        if self.order is None:
            return nodes.popitem()[0]
        del nodes[node := self.order.most_awake(nodes)]
        return node

    def set_down(self, node: int) -> None:
        """Take a node down; its jobs have been stopped."""
        self._move(node, is_up=False)

    def set_up(self, node: int) -> None:
        self._move(node, is_up=True)

    def _move(self, node: int, *, is_up: bool) -> None:
        free, type_index = self.free_mask[node].bit_count(), self.node_type[node]
        self.is_up[node] = is_up
        sign = 1 if is_up else -1
        if is_up:
            self.nodes_with[type_index][free][node] = None
        else:
            del self.nodes_with[type_index][free][node]
        self.free.nodes_with[type_index][free] += sign
        self.free.by_type[type_index] += sign * free

    def _take_several(self, shape: Shape) -> Nodes | None:
        """Allocate GPUs of more than one node."""
        type_index, left, _ = shape
        nodes_with = self.nodes_with[type_index]
        # own counts: a policy may have changed those in `free`
        plan = FreeGpus([[]] * type_index + [[len(each) for each in nodes_with]])
        if not plan.fits(shape):
            return None
        taken = []
        for had in plan.take(shape):
            node = self._pop(nodes_with[had])
            part = min(had, left)
            left -= part
            mask = self.free_mask[node]
            order = _without if self.order is None else partial(self.order.without, node)
            self.free_mask[node] = rest = order(mask, part)
            nodes_with[had - part][node] = None
            counts = self.free.nodes_with[type_index]
            counts[had] -= 1
            counts[had - part] += 1
            self.free.by_type[type_index] -= part
            taken.append((node, mask ^ rest))
        return tuple(taken)


def _without(mask: int, gpus: int) -> int:
    """Clear the lowest bits of a mask."""
    if gpus == mask.bit_count():
        return 0
    for _ in range(gpus):
        mask &= mask - 1  # clears the lowest bit
    return mask


def why_never(kind: JobKind, options: PlacementOptions, cluster: Cluster) -> str:
    """Return why no job of this kind can run, even on the empty cluster; empty if it can."""
    by_type = zip(cluster.types, cluster.gpus_by_type, strict=True)
    most = max((n for each, n in by_type if not kind.types or each.name in kind.types), default=0)
    least = min(kind.gpus)
    if least <= most and not len(options):
        reason = options.source if kind.is_laid_out else ""
        return f"{kind.label}: {reason or 'fits no GPU of the cluster in any of its settings'}"
    free = Machines(cluster).free
    if any(free.fits(shape) for shape in set(options.shapes())):
        return ""
    least = int(options.gpus.min()) if len(options) else least
    return f"{kind.label}: needs at least {least} GPUs of one type, the cluster has {most} at most"
