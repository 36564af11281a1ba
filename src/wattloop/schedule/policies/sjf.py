"""Shortest job first, a job's length being its time on the placement its owner would choose."""

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.objectives import TIME
from wattloop.schedule.policies.packing import PackingPolicy
from wattloop.schedule.queue import Columns
from wattloop.schedule.view import ClusterView


class Sjf(PackingPolicy):
    """score = least T over all its placements, free or not; it starts on the fastest free one.

    A job's length is thus a property of the job, as where every job asks for fixed machines, and
    waiting gains it nothing: long jobs may wait for as long as short ones come.
    """

    name = "sjf"
    objective = TIME

    def rank(
        self, view: ClusterView, waiting: Columns, cost: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Time on the fastest placement of the job, whoever has those machines now."""
        del waiting, cost
        least: NDArray[np.float64] = view.queue.cost(self.objective).min(axis=0)
        return least
