"""How much more power a cluster may draw, if whatever may go wrong with estimates does.

Promise: if every start and recap stays within the headroom, the cluster is never above its budget,
as long as truth exceeds estimates by no more than the oracle says it may.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.objectives import Estimates, Objective
from wattloop.schedule.oracle.options import Options
from wattloop.schedule.view import ClusterView

__all__ = ["ABOVE_IDLE", "Headroom", "worst_w"]

Floats = NDArray[np.float64]
SAFETY = 1e-6
"""Share of the budget that is left alone, for sums of floats."""

DOUBT_PER_STOP = 0.05
"""By how much more than an oracle admits a job's power is doubted, each time it was stopped."""


def _above_idle(estimates: Estimates) -> Floats:
    return estimates.power_w - estimates.idle_w


ABOVE_IDLE = Objective("power above idle", _above_idle, degree=0)
"""What a start adds to the cluster's power if the estimate holds: no start adds less, at worst."""


class Headroom:
    """Power that is left, counted down as a round's decisions are made.

    What runs is taken as measured, and as going on for ever; nodes that are away as coming back.
    A job to be started or recapped is taken at its worst: by how much its estimate may be
    exceeded, but not above the factory limits of its GPUs.
    """

    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self.drawn_w = view.power_w + _away_w(view.cluster, view.is_up)
        self._busy_w = _busy_w_per_gpu(view.cluster)

    def now_w(self) -> float:
        """What may be added for a moment."""
        return self.until_w(self._view.now_s)

    def alone_w(self) -> float:
        """What may be added now if nothing ran."""
        types = self._view.cluster.types
        added_w = (
            each.power_w - each.gpus * types[each.type_index].idle_w
            for each in self._view.running.values()
        )
        return self.now_w() + sum(max(each_w, 0.0) for each_w in added_w)

    def until_w(self, end_s: float) -> float:
        """What may be added from now until a time: the least of the budgets until then."""
        view = self._view
        return view.budget_w.least(view.now_s, end_s) * (1 - SAFETY) - self.drawn_w

    def added_w(self, job: int, estimates: Estimates) -> Floats:
        """What each option of a waiting job adds at worst: GPUs at work instead of idle, hosts."""
        options = self._view.queue.options(job)
        hosts_w = self._busy_w[options.type_index] * options.gpus
        # Stopped before, perhaps for drawing more than anybody said it could: no second time.
        doubt = 1 + DOUBT_PER_STOP * self._view.preemptions[job]
        return worst_w(self._view, options, estimates, doubt) - estimates.idle_w + hosts_w

    def keeps(self, job: int, estimates: Estimates) -> NDArray[np.bool_]:
        """Which options of a waiting job keep all budgets until it is done, at worst."""
        view = self._view
        added_w = self.added_w(job, estimates)
        found = added_w <= self.now_w()
        if math.isfinite(view.budget_w.next_change_s(view.now_s)):
            end_s = view.now_s + estimates.time_s * (1 + view.time_error)
            for option in np.flatnonzero(found):
                found[option] = added_w[option] <= self.until_w(float(end_s[option]))
        return found

    def start(self, job: int, option: int) -> None:
        """A waiting job is to start: what it may add is no longer there."""
        self.drawn_w += float(self.added_w(job, self._view.queue.estimates(job))[option])

    def stop(self, job: int) -> None:
        """A running job is to be stopped: its GPUs will be idle."""
        running = self._view.running[job]
        idle_w = running.gpus * self._view.cluster.types[running.type_index].idle_w
        self.drawn_w -= max(running.power_w - idle_w, 0.0)


def worst_w(
    view: ClusterView, options: Options, estimates: Estimates, doubt: float = 1.0
) -> Floats:
    """The most that the GPUs of each option may draw, times `doubt`."""
    tdp_w = np.array([each.tdp_w for each in view.cluster.types])
    limit_w = tdp_w[options.type_index] * options.gpus
    worst: Floats = estimates.power_w * (1 + view.power_error) * doubt
    return np.minimum(worst, np.maximum(limit_w, estimates.power_w))


def _away_w(cluster: Cluster, is_up: Sequence[bool]) -> float:
    """What nodes that are down will draw, idle, once they are back."""
    if all(is_up):
        return 0.0
    groups = cluster.node_groups
    away = [node for node, up in enumerate(is_up) if not up]
    return sum(
        groups[node].host_w
        + groups[node].gpus_per_node * cluster.types[cluster.node_types[node]].idle_w
        for node in away
    )


def _busy_w_per_gpu(cluster: Cluster) -> Floats:
    """What a host draws more per GPU at work, by GPU type: the most of its groups."""
    found = np.zeros(len(cluster.types))
    index = {kind.name: number for number, kind in enumerate(cluster.types)}
    for group in cluster.groups:
        number = index[group.type_name]
        found[number] = max(found[number], group.host_busy_w_per_gpu)
    return found
