"""First in, first out with backfilling (EASY): others go ahead where the first is not held up.

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
"""Below the infinite time of a job on machines that it cannot use."""
SAME_LOOK = 1e-9
"""Share of the time between looks, for quotients of floats."""


class Backfill(Fifo):
    """Order of arrival; the first job that finds no place is promised one, others fill the gaps.

    The promise: the earliest time at which running jobs are believed to have left enough GPUs. A
    later job starts before it if it is believed to end by then, or if its GPUs are not needed for
    the promise. With exact estimates the first job is never held up.

    Args:
        look_s: gaps are filled at multiples of this time only, as Slurm's `bf_interval` has it;
            0 fills them whenever something happens.
    """

    name = "backfill"

    def __init__(self, look_s: float = 0.0) -> None:
        if not 0.0 <= look_s < math.inf:
            raise ConfigError(f"look_s {look_s:g}: give 0 or some seconds")
        self.look_s = look_s

    def decide(self, view: ClusterView) -> Sequence[Action]:
        """Start the first jobs; fill the gaps when none of them fits."""
        starts = super().decide(view)
        if starts or not len(view.queue) or not view.free.total:
            return starts
        if self.look_s:
            looks_s = self.look_s * math.ceil(view.now_s / self.look_s - SAME_LOOK)
            if looks_s > view.now_s:
                return [Wake(looks_s)]
        return _fill(view, _promise(view))


@dataclass(frozen=True, slots=True)
class _Promise:
    """When and where the first job will start.

    Attributes:
        at_s: infinite when nobody knows, as where nodes are down; then it holds nobody up.
        shape: what it will take.
        later: free GPUs at that time.
        grown: free GPUs of a busy node of that type -> what such nodes will have at that time.
    """

    at_s: float
    shape: Shape
    later: FreeGpus
    grown: Mapping[int, set[int]]

    def is_kept_beside(self, shape: Shape, free: FreeGpus) -> bool:
        """Whether a job may stay on this shape for ever, whichever of the nodes it gets."""
        if shape[0] != self.shape[0]:
            return True
        had = free.copy().take(shape)
        if len(had) > 1:
            return False
        return all(
            _without(self.later, shape, free_later).fits(self.shape)
            for free_later in {had[0], *self.grown.get(had[0], ())}
        )


def _promise(view: ClusterView) -> _Promise:
    """Let running jobs end one after the other until the first job fits."""
    queue, later = view.queue, view.free.copy()
    head = queue.head()
    assert head is not None  # somebody waits
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
            return _Promise(max(end_s, view.now_s), shape, later, grown)
    return _Promise(math.inf, (-1, 0, False), later, {})


def _free_of_busy_nodes(view: ClusterView) -> dict[int, int]:
    """Node where something runs -> its free GPUs."""
    groups = view.cluster.node_groups
    free: dict[int, int] = {}
    for running in view.running.values():
        for node, mask in running.nodes:
            free[node] = free.get(node, groups[node].gpus_per_node) - mask.bit_count()
    return free


def _without(later: FreeGpus, shape: Shape, had: int) -> FreeGpus:
    """What is free later if a job has its GPUs on a node that would have `had`."""
    rest = later.copy()
    rest.give(shape[0], -shape[1], had)
    return rest


def _fill(view: ClusterView, promise: _Promise) -> list[Action]:
    """Later jobs by arrival, each on the fastest placement that leaves the promise alone."""
    queue, free = view.queue, view.free.copy()
    fitting = [number for number, shape in enumerate(queue.shapes) if free.fits(shape)]
    costs_s, jobs = queue.cost(TIME)[fitting], queue.columns().job
    until_s = min((promise.at_s - view.now_s) / (1 + view.time_error), MOST_S)
    is_first = True  # of this type; what other nodes will have is known only before it
    starts: list[Action] = []
    while True:
        limits_s = np.full(len(fitting), -1.0)
        for place, number in enumerate(fitting):
            shape = queue.shapes[number]
            if free.fits(shape):
                may_stay = is_first or shape[0] != promise.shape[0]
                stays = may_stay and promise.is_kept_beside(shape, free)
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
        is_first &= shape[0] != promise.shape[0]
