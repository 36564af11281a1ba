"""Chronos: jobs with a deadline first, least slack before more (thesis algorithm 5)."""

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.policies.pollux import Pollux
from wattloop.schedule.queue import Columns, Floats
from wattloop.schedule.view import ClusterView


class Chronos(Pollux):
    """score = (0, deadline - (now + min(T))) with a deadline, else (1, Pollux's score).

    Args:
        age_weight: W_age of jobs without a deadline, as in Pollux.
    """

    name = "chronos"

    def tier(self, view: ClusterView, waiting: Columns) -> NDArray[np.int64]:
        """Return 0 for jobs with a deadline, 1 for the others."""
        del view
        return np.where(np.isfinite(waiting.deadline_s), 0, 1)

    def rank(self, view: ClusterView, waiting: Columns, cost: Floats) -> Floats:
        slack_s = waiting.deadline_s - (view.now_s + cost)
        has_deadline = np.isfinite(waiting.deadline_s)
        return np.where(has_deadline, slack_s, super().rank(view, waiting, cost))
