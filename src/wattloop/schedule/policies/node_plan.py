"""What each node will have free, and when, if running jobs end as believed or are stopped."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wattloop.schedule.free_gpus import FreeGpus
from wattloop.schedule.oracle.options import Shape
from wattloop.schedule.running import Running
from wattloop.schedule.view import ClusterView

__all__ = ["NodePlan", "Promise", "Victims"]


class Promise(NamedTuple):
    """A placement that somebody waits for, from when to when."""

    shape: Shape
    at_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Victims:
    """Running jobs to stop for a placement, and the energy that is lost by it."""

    jobs: tuple[int, ...]
    lost_j: float


class NodePlan:
    """Free GPUs of every node by its number, beside the anonymous counts of the view."""

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._ends: dict[int, tuple[dict[int, int], list[tuple[float, int, int]]]] = {}
        cluster = view.cluster
        self._free = [
            group.gpus_per_node if up else 0
            for group, up in zip(cluster.node_groups, view.is_up, strict=True)
        ]
        for running in view.running.values():
            for node, mask in running.nodes:
                self._free[node] -= mask.bit_count()

    def when_s(self, shape: Shape, promised: Sequence[Promise] = ()) -> float:
        """When a placement is believed to fit beside what is promised; infinite for never."""
        view, free, left = self._view, self._view.free.copy(), self._free.copy()
        mine = [each for each in promised if each.shape[0] == shape[0]]
        ends: list[tuple[float, int]] = [(view.now_s, -1), *((each.end_s, -1) for each in mine)]
        for job, each in view.running.items():
            if each.type_index == shape[0]:
                ends.append((max(each.expected_end_s, view.now_s), job))
        for end_s, job in sorted(ends):
            if job >= 0:
                self._give(free, left, view.running[job])
            if _fits_beside(free, shape, [each.shape for each in mine if each.end_s > end_s]):
                return end_s
        return float("inf")

    def soonest_s(self, shape: Shape) -> float:
        """When running jobs leave room for a placement, whoever else waits for it.

        What is overdue by so many seconds is believed to take as many more.
        """
        type_index, gpus, spread = shape
        view = self._view
        if type_index not in self._ends:
            types = view.cluster.node_types
            free = {node: self._free[node] for node, kind in enumerate(types) if kind == type_index}
            self._ends[type_index] = (
                free,
                sorted(
                    (view.now_s + abs(each.expected_end_s - view.now_s), node, mask.bit_count())
                    for each in view.running.values()
                    if each.type_index == type_index
                    for node, mask in each.nodes
                ),
            )
        found, ends = self._ends[type_index]
        free, together = found.copy(), sum(found.values())
        is_whole = spread or gpus > view.cluster.gpus_per_node(type_index)
        if (together if is_whole else max(free.values(), default=0)) >= gpus:
            return view.now_s
        for end_s, node, ended in ends:
            free[node] += ended
            together += ended
            if (together if is_whole else free[node]) >= gpus:
                return end_s
        return float("inf")

    def hold(self, free: FreeGpus, shape: Shape) -> None:
        """Take GPUs that are kept for a placement to come out of what is free.

        Those of the node where it will fit first; of all nodes of its type if it needs several.
        """
        type_index, gpus, spread = shape
        types = self._view.cluster.node_types
        nodes = [node for node, kind in enumerate(types) if kind == type_index]
        if not spread and gpus <= self._view.cluster.gpus_per_node(type_index):
            nodes = [min(nodes, key=lambda node: (self._full_s(node, gpus), node))]
        for node in nodes:
            left = self._free[node]
            if left and free.nodes_with[type_index][left]:
                free.give(type_index, -left, left)

    def victims(
        self, shape: Shape, may_stop: Callable[[Running], bool], loss_j: Callable[[Running], float]
    ) -> Victims | None:
        """Whom to stop so that a placement fits, wasting least energy; None if nothing helps."""
        type_index, gpus, spread = shape
        view = self._view
        allowed = [
            (loss_j(each), job)
            for job, each in view.running.items()
            if each.type_index == type_index and not each.is_done and may_stop(each)
        ]
        allowed.sort(key=lambda found: (found[0] / view.running[found[1]].gpus, found[1]))
        if spread or gpus > view.cluster.gpus_per_node(type_index):
            return self._least(shape, allowed)
        by_node: dict[int, list[tuple[float, int]]] = {}
        for found in allowed:
            for node, _ in view.running[found[1]].nodes:
                by_node.setdefault(node, []).append(found)
        tried = [self._least(shape, by_node[node]) for node in sorted(by_node)]
        return min((each for each in tried if each), key=lambda each: each.lost_j, default=None)

    def _least(self, shape: Shape, allowed: Iterable[tuple[float, int]]) -> Victims | None:
        """The first of the allowed ones that suffice, without those that turn out needless."""
        chosen: list[tuple[float, int]] = []
        for found in allowed:
            chosen.append(found)
            if self._fits_without([job for _, job in chosen], shape):
                break
        else:
            return None
        for found in sorted(chosen, reverse=True):
            rest = [job for _, job in chosen if job != found[1]]
            if self._fits_without(rest, shape):
                chosen.remove(found)
        return Victims(tuple(job for _, job in chosen), sum(lost_j for lost_j, _ in chosen))

    def _fits_without(self, jobs: Iterable[int], shape: Shape) -> bool:
        free, left = self._view.free.copy(), self._free.copy()
        for job in jobs:
            self._give(free, left, self._view.running[job])
        return free.fits(shape)

    def _give(self, free: FreeGpus, left: list[int], running: Running) -> None:
        for node, mask in running.nodes:
            gpus = mask.bit_count()
            free.give(running.type_index, gpus, left[node])
            left[node] += gpus

    def _full_s(self, node: int, gpus: int) -> float:
        """When a node is believed to have so many GPUs free."""
        free = self._free[node]
        if free >= gpus:
            return self._view.now_s
        here = sorted(
            (each.expected_end_s, mask.bit_count())
            for each in self._view.running.values()
            for at, mask in each.nodes
            if at == node
        )
        for end_s, ended in here:
            free += ended
            if free >= gpus:
                return end_s
        return float("inf")


def _fits_beside(free: FreeGpus, shape: Shape, others: Sequence[Shape]) -> bool:
    """Whether a placement fits once the others have taken theirs."""
    if not others:
        return free.fits(shape)
    rest = free.copy()
    for other in others:
        if not rest.fits(other):
            return False
        rest.take(other)
    return rest.fits(shape)
