"""First in, first out with backfilling (EASY): later jobs start if the first is not delayed.

The rule of Lifka, "The ANL/IBM SP scheduling system" (1995), which Slurm's backfill extends.
"""

import heapq
import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wattloop.core.errors import ConfigError
from wattloop.schedule.actions import Action, Start, Wake
from wattloop.schedule.estimates.oracle import Shape
from wattloop.schedule.free_gpus import FreeGpus
from wattloop.schedule.objectives import TIME
from wattloop.schedule.policies.fifo import Fifo
from wattloop.schedule.view import ClusterView

MOST_S = sys.float_info.max
"""Below the infinite time of a job on GPUs that it cannot use."""
SAME_LOOK = 1e-9
"""Tolerance of quotients of times, as a share of `look_s`."""


class Backfill(Fifo):
    """Order of arrival, with a reservation for the first job that does not fit.

    The reservation is at the earliest time at which running jobs are expected to have freed enough
    GPUs. A later job starts before it if it is expected to end by then, or if its GPUs are not part
    of the reservation. With exact estimates the first job is never delayed.

    Args:
        look_s: gaps are filled only at multiples of this time, like Slurm's `bf_interval`; 0 fills
            them at every event.
    """

    name = "backfill"

    def __init__(self, look_s: float = 0.0) -> None:
        if not 0.0 <= look_s < math.inf:
            raise ConfigError(f"look_s {look_s:g}: give 0 or some seconds")
        self.look_s = look_s

    def decide(self, view: ClusterView) -> Sequence[Action]:
        starts = super().decide(view)
        if starts or not len(view.queue) or not view.free.total:
            return starts
        if self.look_s:
            looks_s = self.look_s * math.ceil(view.now_s / self.look_s - SAME_LOOK)
            if looks_s > view.now_s:
                return [Wake(looks_s)]
        return _fill(view, _reserve(view))


@dataclass(frozen=True, slots=True)
class _Reservation:
    """Reservation of the first job.

    Attributes:
        at_s: infinite when unknown, such as with failed nodes; then no job is held back.
        later: free GPUs at that time.
        grown: free GPUs of a busy node of that type -> free GPUs of such nodes at that time.
    """

    at_s: float
    shape: Shape
    later: FreeGpus
    grown: Mapping[int, set[int]]

    def allows(self, shape: Shape, free: FreeGpus) -> bool:
        """Return True if a job may keep this shape for ever, on any node that it may get."""
        if shape[0] != self.shape[0]:
            return True
        had = free.copy().take(shape)
        if len(had) > 1:
            return False
        return all(
            _without(self.later, shape, free_later).fits(self.shape)
            for free_later in {had[0], *self.grown.get(had[0], ())}
        )


def _reserve(view: ClusterView) -> _Reservation:
    """End running jobs one after the other until the first job fits."""
    queue, later = view.queue, view.free.copy()
    head = queue.head()
    assert head is not None  # the queue is not empty
    options = queue.options(head)
    shapes = list(dict.fromkeys(options.shape(each) for each in queue.options_by(TIME, head)))
    free_now = _free_of_busy_nodes(view)
    free_later = free_now.copy()
    ends = [(running.expected_end_s, job) for job, running in view.running.items()]
    heapq.heapify(ends)
    while ends:
        end_s, job = heapq.heappop(ends)
        running = view.running[job]
        for node, mask in running.nodes:
            given = mask.bit_count()
            later.give(running.type_index, given, free_later[node])
            free_later[node] += given
        shape = next((each for each in shapes if later.fits(each)), None)
        if shape is not None:
            grown = defaultdict(set)
            for node, free in free_now.items():
                if view.cluster.node_types[node] == shape[0]:
                    grown[free].add(free_later[node])
            return _Reservation(max(end_s, view.now_s), shape, later, grown)
    return _Reservation(math.inf, (-1, 0, False), later, {})


def _free_of_busy_nodes(view: ClusterView) -> dict[int, int]:
    """Return busy node -> its free GPUs."""
    groups = view.cluster.node_groups
    free: dict[int, int] = {}
    for running in view.running.values():
        for node, mask in running.nodes:
            free[node] = free.get(node, groups[node].gpus_per_node) - mask.bit_count()
    return free


def _without(later: FreeGpus, shape: Shape, had: int) -> FreeGpus:
    """Return the later free GPUs if a job holds GPUs on a node that would have `had` free."""
    rest = later.copy()
    rest.give(shape[0], -shape[1], had)
    return rest


def _fill(view: ClusterView, reservation: _Reservation) -> list[Action]:
    """Start later jobs by arrival, each on the fastest placement that respects the reservation."""
    queue, free = view.queue, view.free.copy()
    fitting = [number for number, shape in enumerate(queue.shapes) if free.fits(shape)]
    costs_s, jobs = queue.cost(TIME)[fitting], queue.columns().job
    until_s = min((reservation.at_s - view.now_s) / (1 + view.time_error), MOST_S)
    is_first = True  # of this type: later free GPUs of nodes are known only before a start
    starts: list[Action] = []
    while True:
        limits_s = np.full(len(fitting), -1.0)
        for place, number in enumerate(fitting):
            shape = queue.shapes[number]
            if free.fits(shape):
                may_stay = is_first or shape[0] != reservation.shape[0]
                stays = may_stay and reservation.allows(shape, free)
                limits_s[place] = MOST_S if stays else until_s
        rows = np.flatnonzero((costs_s <= limits_s[:, None]).any(axis=0))
        if not len(rows):
            return starts
        row = rows[np.argmin(jobs[rows])]
        job, mine_s = int(jobs[row]), costs_s[:, row]
        place = int(np.argmin(np.where(mine_s <= limits_s, mine_s, math.inf)))
        shape = queue.shapes[fitting[place]]
        starts.append(Start(job, queue.best_option(TIME, job, shape)))
        free.take(shape)
        costs_s[:, row] = math.inf
        is_first &= shape[0] != reservation.shape[0]
