"""Zeus: least energy-delay product first (thesis algorithm 6)."""

from wattloop.schedule.objectives import EDP
from wattloop.schedule.policies.packing import EDP_AGE_WEIGHT_PER_S, PackingPolicy, weight
from wattloop.schedule.queue import Columns, Floats
from wattloop.schedule.view import ClusterView


class Zeus(PackingPolicy):
    """score = min(P T^2) / (1 + W_age (now - arrival)).

    Args:
        age_weight_per_s: W_age, the gain of waiting jobs.
    """

    name = "zeus"
    objective = EDP

    def __init__(self, age_weight_per_s: float = EDP_AGE_WEIGHT_PER_S) -> None:
        self.age_weight_per_s = weight("age_weight_per_s", age_weight_per_s)

    def rank(self, view: ClusterView, waiting: Columns, cost: Floats) -> Floats:
        return cost / (1 + self.age_weight_per_s * (view.now_s - waiting.arrival_s))
