"""Free GPUs of each node over time, if running jobs end as estimated or are preempted."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from wattloop.schedule.estimates.oracle import Shape
from wattloop.schedule.free_gpus import FreeGpus
from wattloop.schedule.view import ClusterView, RunningJob


class Reservation(NamedTuple):
    """Reserved placement, from when to when."""

    shape: Shape
    at_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Victims:
    """Running jobs to preempt for a placement, and the lost energy."""

    jobs: tuple[int, ...]
    lost_j: float


class NodePlan:
    """Free GPUs by node number, in addition to the anonymous counts of the view."""

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
        self._when_s: dict[tuple[Shape, tuple[Reservation, ...]], float] = {}
        self._losses: dict[int, list[tuple[float, float, int]]] = {}

    @cached_property
    def _running(self) -> list[list[tuple[float, int]]]:
        """(end, job) by GPU type, ordered by end."""
        found: list[list[tuple[float, int]]] = [[] for _ in self._view.cluster.types]
        now_s = self._view.now_s
        for job, each in self._view.running.items():
            found[each.type_index].append((max(each.expected_end_s, now_s), job))
        for ends in found:
            ends.sort()
        return found

    @cached_property
    def _on_node(self) -> dict[int, list[tuple[float, int]]]:
        """Node -> (end, GPUs) of its jobs, ordered by end."""
        found: dict[int, list[tuple[float, int]]] = {}
        for each in self._view.running.values():
            for node, mask in each.nodes:
                found.setdefault(node, []).append((each.expected_end_s, mask.bit_count()))
        for ends in found.values():
            ends.sort()
        return found

    def when_s(self, shape: Shape, reserved: Sequence[Reservation] = ()) -> float:
        """Return when a placement is expected to fit in addition to reserved ones."""
        mine = tuple(each for each in reserved if each.shape[0] == shape[0])
        key = (shape, mine)
        if key not in self._when_s:
            self._when_s[key] = self._found_s(shape, mine)
        return self._when_s[key]

    def _found_s(self, shape: Shape, mine: Sequence[Reservation]) -> float:
        view, free, left = self._view, self._view.free.copy(), self._free.copy()
        ends = [(view.now_s, -1), *((each.end_s, -1) for each in mine), *self._running[shape[0]]]
        # Reservations take GPUs, so with them it is never sooner.
        from_s = self.when_s(shape) if mine else view.now_s
        for end_s, job in sorted(ends):
            if job >= 0:
                for node, mask in view.running[job].nodes:
                    free.give(shape[0], mask.bit_count(), left[node])
                    left[node] += mask.bit_count()
            if end_s < from_s or not free.fits(shape):
                continue
            if _fits_with(free, shape, [each.shape for each in mine if each.end_s > end_s]):
                return end_s
        return float("inf")

    def soonest_s(self, shape: Shape) -> float:
        """Return when running jobs leave room for a placement, ignoring other waiting jobs.

        A job that is overdue by some time is expected to take the same time again.
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
        """Remove GPUs that are reserved for a placement from the free ones.

        These are on the node where it fits first; on all nodes of its type if it needs several.
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

    def victims(self, shape: Shape, may_stop: Callable[[RunningJob], bool]) -> Victims | None:
        """Return the jobs to preempt for a placement, with the least loss; None if none helps."""
        type_index, gpus, spread = shape
        view = self._view
        allowed = [
            (loss_j, job)
            for _, loss_j, job in self._by_loss(type_index)
            if may_stop(view.running[job])
        ]
        if spread or gpus > view.cluster.gpus_per_node(type_index):
            return self._least(shape, allowed)
        by_node: dict[int, list[tuple[float, int]]] = {}
        for found in allowed:
            for node, _ in view.running[found[1]].nodes:
                by_node.setdefault(node, []).append(found)
        tried = [self._least(shape, by_node[node]) for node in sorted(by_node)]
        return min((each for each in tried if each), key=lambda each: each.lost_j, default=None)

    def _by_loss(self, type_index: int) -> list[tuple[float, float, int]]:
        """Return (loss per GPU, loss, job) of the jobs on a type, least first."""
        if type_index not in self._losses:
            running, loss = self._view.running, self._view.loss
            found = []
            for _, job in self._running[type_index]:
                each = running[job]
                if not each.is_done:
                    loss_j = loss(each).energy_j
                    found.append((loss_j / each.gpus, loss_j, job))
            found.sort(key=lambda one: (one[0], one[2]))
            self._losses[type_index] = found
        return self._losses[type_index]

    def _least(self, shape: Shape, allowed: Iterable[tuple[float, int]]) -> Victims | None:
        """Return the first allowed jobs that suffice, without unnecessary ones."""
        chosen: list[tuple[float, int]] = []
        for found in allowed:
            chosen.append(found)
            if self.fits_without([job for _, job in chosen], shape):
                break
        else:
            return None
        for found in sorted(chosen, reverse=True):
            rest = [job for _, job in chosen if job != found[1]]
            if self.fits_without(rest, shape):
                chosen.remove(found)
        return Victims(tuple(job for _, job in chosen), sum(lost_j for lost_j, _ in chosen))

    def fits_without(self, jobs: Iterable[int], shape: Shape) -> bool:
        """Return True if a placement fits once some running jobs have left their GPUs."""
        free, more = self._view.free.copy(), dict[int, int]()
        for job in jobs:
            running = self._view.running[job]
            for node, mask in running.nodes:
                gpus, had = mask.bit_count(), more.get(node, 0)
                free.give(running.type_index, gpus, self._free[node] + had)
                more[node] = had + gpus
        return free.fits(shape)

    def _full_s(self, node: int, gpus: int) -> float:
        """Return when a node is expected to have this many free GPUs."""
        free = self._free[node]
        if free >= gpus:
            return self._view.now_s
        here = self._on_node.get(node, [])
        for end_s, ended in here:
            free += ended
            if free >= gpus:
                return end_s
        return float("inf")


def _fits_with(free: FreeGpus, shape: Shape, others: Sequence[Shape]) -> bool:
    """Return True if a placement fits after the others have taken their GPUs."""
    if not others:
        return free.fits(shape)
    rest = free.copy()
    for other in others:
        if not rest.fits(other):
            return False
        rest.take(other)
    return rest.fits(shape)
