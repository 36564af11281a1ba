"""A scheduling policy of your own: deadlines first, the rest by energy-delay product.

wattloop simulate thesis-pareto --policies zeus,examples/my_policy.py:Punctual --seeds 3
"""

import numpy as np

from wattloop.schedule.objectives import EDP
from wattloop.schedule.policies.packing import PackingPolicy


class Punctual(PackingPolicy):
    """score = (0, deadline) with a deadline, else (1, P T^2 / (1 + age / patience))."""

    name = "punctual"
    objective = EDP  # of the placements that are free, a job takes the one of least cost

    def __init__(self, patience_s: float = 1800.0) -> None:
        self.patience_s = patience_s

    def tier(self, view, waiting):
        return np.where(np.isfinite(waiting.deadline_s), 0, 1)

    def rank(self, view, waiting, cost):
        age_s = view.now_s - waiting.arrival_s
        return np.where(
            np.isfinite(waiting.deadline_s),
            waiting.deadline_s,
            cost / (1 + age_s / self.patience_s),
        )
