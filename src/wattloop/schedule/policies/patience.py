"""Waiting for a better place: a job stays in the queue while that costs less than starting here.

    stays if cost there + v P_ref (wait for it) < cost here

The wait is until running jobs leave room, by what is believed of their ends, and for those ahead
that wait for the same GPU type. A second of it is worth what a second of running is. Ever new jobs
may go before it there, so that nobody stays who has waited for as long as he would run here.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.actions import Action, Wake
from wattloop.schedule.objectives import TIME, Objective
from wattloop.schedule.policies.node_plan import NodePlan
from wattloop.schedule.policies.power_budget import ABOVE_IDLE, Headroom
from wattloop.schedule.policies.time_value import reference_w
from wattloop.schedule.queue import Columns
from wattloop.schedule.view import ClusterView

Floats = NDArray[np.float64]
Rank = Callable[[ClusterView, Columns, Floats], Floats]
LOOKS = 16
"""Jobs of a round that may stay, those whose turn it is: behind so many nobody gains by waiting."""


class Patience:
    """Who had better wait, in one round.

    Args:
        view: the cluster.
        objective: by what placements are chosen.
        value: v.
        headroom: what power is left; what never fits into the budget is not waited for.

    Attributes:
        wakes: when to look again if what was waited for does not come.
    """

    def __init__(
        self, view: ClusterView, objective: Objective, value: float, headroom: Headroom
    ) -> None:
        self._view, self._objective, self._value = view, objective, value
        self._headroom = headroom
        self._ahead_s = [0.0] * len(view.cluster.types)
        self._free_s: dict[int, float] = {}
        self._plan: NodePlan | None = None
        self.wakes: list[Action] = []

    def after(self, rank: Rank) -> Rank:
        """The same order of jobs, without those that stay."""

        def ranked(view: ClusterView, waiting: Columns, cost: Floats) -> Floats:
            scores, queue = rank(view, waiting, cost), view.queue
            table = queue.table(self._objective)
            costs = table.costs
            if (alone_w := self._headroom.alone_w()) < math.inf:
                costs = np.where(queue.table(ABOVE_IDLE).costs <= alone_w, costs, np.inf)
            fits = np.array([view.free.fits(shape) for shape in queue.shapes])
            taken = np.flatnonzero(~fits)
            if not len(taken):
                return scores
            chosen = taken[np.argmin(costs[taken], axis=0)]
            there = table.rows(chosen)
            least = table.of_jobs(costs[chosen, np.arange(costs.shape[1])])
            rows = np.flatnonzero(np.isfinite(scores) & np.isfinite(cost) & (least < cost))
            if not len(rows):
                return scores
            if len(rows) > 4 * LOOKS:
                rows = rows[scores[rows] <= np.partition(scores[rows], LOOKS)[LOOKS]]
            reference_by_owner = queue.table(reference_w(exact=view.time_error == 0))
            times = queue.table(TIME)
            here_s = times.of_jobs(times.costs[fits].min(axis=0, initial=np.inf))
            owner = reference_by_owner.owner
            scores = scores.copy()
            for row in rows[np.lexsort((waiting.job[rows], scores[rows]))][:LOOKS].tolist():
                gain_j = float(cost[row] - least[row])
                column = row if owner is None else int(owner[row])
                second_j = self._value * float(reference_by_owner.costs[there[row], column])
                until_s = float(waiting.arrival_s[row] + here_s[row])
                if until_s <= view.now_s:
                    continue
                if self._stays(int(waiting.job[row]), int(there[row]), gain_j, second_j):
                    self.wakes.append(Wake(until_s))
                    scores[row] = np.inf
            return scores

        return ranked

    def _stays(self, job: int, shape_number: int, gain_j: float, second_j: float) -> bool:
        """Whether a place that is taken now gains this job more than the wait for it costs."""
        queue, now_s = self._view.queue, self._view.now_s
        type_index, gpus, _ = shape = queue.shapes[shape_number]
        if self._ahead_s[type_index] * second_j >= gain_j:
            return False
        free_s = self._free_at_s(shape_number)
        if free_s == math.inf or (free_s + self._ahead_s[type_index] - now_s) * second_j >= gain_j:
            return False
        option = queue.best_option(self._objective, job, shape)
        of_type = self._view.cluster.gpus_by_type[type_index]
        self._ahead_s[type_index] += float(queue.estimates(job).time_s[option]) * gpus / of_type
        if second_j > 0:
            self.wakes.append(Wake(free_s + gain_j / second_j))
        return True

    def _free_at_s(self, shape_number: int) -> float:
        """When there is room; never for what is kept for somebody else."""
        if shape_number not in self._free_s:
            self._plan = self._plan or NodePlan(self._view)
            at_s = self._plan.soonest_s(self._view.queue.shapes[shape_number])
            self._free_s[shape_number] = at_s if at_s > self._view.now_s else math.inf
        return self._free_s[shape_number]
