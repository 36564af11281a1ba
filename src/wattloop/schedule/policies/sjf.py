"""Shortest job first, by a job's time on its fastest placement."""

from wattloop.schedule.objectives import TIME
from wattloop.schedule.policies.packing import PackingPolicy
from wattloop.schedule.queue import Columns, Floats
from wattloop.schedule.view import ClusterView


class Sjf(PackingPolicy):
    """score = least T over all its placements, free or not; it starts on the fastest free one.

    The length is a property of the job and does not depend on free machines. Waiting does not
    improve the score: long jobs may wait as long as short ones arrive.
    """

    name = "sjf"
    objective = TIME

    def rank(self, view: ClusterView, waiting: Columns, cost: Floats) -> Floats:
        del waiting, cost
        least: Floats = view.queue.cost(self.objective).min(axis=0)
        return least
