"""Batch packing: score every waiting job once, then start them in that order while they fit.

The loop of thesis 5.3.2.4, over arrays: a policy says by what a placement is chosen (`objective`)
and how jobs are ranked (`rank`), and is done.
"""

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.actions import Action, Start
from wattloop.schedule.objectives import Objective
from wattloop.schedule.policies.policy import Policy
from wattloop.schedule.queue import Columns
from wattloop.schedule.view import ClusterView

__all__ = ["PackingPolicy"]

Floats = NDArray[np.float64]


class PackingPolicy(Policy):
    """Each job's best placement among those that fit now, jobs in order of their rank."""

    objective: Objective

    @abstractmethod
    def rank(self, view: ClusterView, waiting: Columns, cost: Floats) -> Floats:
        """Score of every waiting job, lowest first, given the cost of its best placement."""

    def decide(self, view: ClusterView) -> Sequence[Action]:
        """Start what fits."""
        queue = view.queue
        fitting = [n for n, shape in enumerate(queue.shapes) if view.free.fits(shape)]
        if not fitting or not len(queue):
            return ()
        costs = queue.cost(self.objective)[fitting]
        chosen = np.argmin(costs, axis=0)
        best = costs[chosen, np.arange(costs.shape[1])]
        waiting = queue.columns()
        scores = np.where(np.isfinite(best), self.rank(view, waiting, best), np.inf)
        free, starts = view.free.copy(), []
        while np.isfinite(scores[row := _first(scores, waiting.job)]):
            shape = queue.shapes[fitting[chosen[row]]]
            free.take(shape)
            job = int(waiting.job[row])
            starts.append(Start(job, queue.best_option(self.objective, job, shape)))
            scores[row] = np.inf
            gone = [n for n, each in enumerate(fitting) if not free.fits(queue.shapes[each])]
            if len(gone) == len(fitting):
                break
            scores[np.isin(chosen, gone)] = np.inf
        return starts


def _first(scores: Floats, jobs: NDArray[np.int64]) -> int:
    """Row of the lowest score; of equals, the one that came first."""
    row = int(np.argmin(scores))
    equals = np.flatnonzero(scores == scores[row])
    return row if len(equals) == 1 else int(equals[np.argmin(jobs[equals])])
