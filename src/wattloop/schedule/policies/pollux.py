"""Pollux: shortest job first, on the fastest free machines (thesis algorithm 3)."""

from wattloop.schedule.objectives import TIME
from wattloop.schedule.policies.packing import TIME_AGE_WEIGHT, PackingPolicy, weight
from wattloop.schedule.queue import Columns, Floats
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

    def rank(self, view: ClusterView, waiting: Columns, cost: Floats) -> Floats:
        return cost - self.age_weight * (view.now_s - waiting.arrival_s)
