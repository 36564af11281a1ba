"""Pollux: shortest job first, on the fastest machines that are free (thesis algorithm 3)."""

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.objectives import TIME
from wattloop.schedule.policies.packing import TIME_AGE_WEIGHT, PackingPolicy, weight
from wattloop.schedule.queue import Columns
from wattloop.schedule.view import ClusterView


class Pollux(PackingPolicy):
    """score = min(T) - W_age (now - arrival).

    Args:
        age_weight: W_age, seconds of score that a job gains per second it waits.
    """

    name = "pollux"
    objective = TIME

    def __init__(self, age_weight: float = TIME_AGE_WEIGHT) -> None:
        self.age_weight = weight("age_weight", age_weight)

    def rank(
        self, view: ClusterView, waiting: Columns, cost: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Thesis 5.4.1."""
        return cost - self.age_weight * (view.now_s - waiting.arrival_s)
