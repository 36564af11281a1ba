"""What the cluster draws now: measured where nodes report, estimated where they do not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from wattloop.schedule.running import Running
from wattloop.schedule.slurm.live_view import LiveView

__all__ = ["NodePower", "PowerNow", "power_now"]

FRESH_S = 15.0
"""Older readings are history."""
SETTLED_S = 5.0
"""A job has reached its power after that; until then a reading may have missed it."""


class NodePower(NamedTuple):
    """What a node reported.

    Attributes:
        watts: of the whole node, or of its GPUs where hosts are not counted.
        at_s: when it was read, seconds since 1970 by our clock.
    """

    watts: float
    at_s: float


@dataclass(frozen=True, slots=True)
class PowerNow:
    """Power of the whole cluster.

    Attributes:
        watts: measured and estimated together.
        measured_nodes: how many nodes are measured; the rest is estimated.
        read_w: the readings alone; None unless every node that is up has one.
    """

    watts: float
    measured_nodes: int
    read_w: float | None = None

    def under(self, budget_w: float) -> float:
        """What a policy is told: nobody is stopped for power that was believed but not read.

        A job that has just begun counts at its estimate. Where readings say that the budget is
        kept all the same, it is taken to be used up, so that nothing starts and nothing stops.
        """
        if self.read_w is None or self.watts <= budget_w:
            return self.watts
        return max(self.read_w, budget_w)


def power_now(live: LiveView, readings: Mapping[int, NodePower]) -> PowerNow:
    """Every node by its reading, else by what is believed to run there.

    A reading counts for what ran when it was taken; jobs that began since, and those about to
    begin, are added at their estimate.

    Args:
        live: the view.
        readings: by node number.
    """
    view, cluster = live.view, live.view.cluster
    fresh = {
        node: each
        for node, each in readings.items()
        if -FRESH_S <= view.now_s - each.at_s <= FRESH_S and live.machines.is_up[node]
    }
    total_w = cluster.network_w
    for node, group in enumerate(cluster.node_groups):
        if node in fresh:
            total_w += fresh[node].watts
        elif live.machines.is_up[node]:
            idle_w = cluster.types[cluster.node_types[node]].idle_w
            total_w += group.host_w + group.gpus_per_node * idle_w
    for job, running in view.running.items():
        is_new = job in live.coming
        for node, share in _shares(running):
            reading = fresh.get(node)
            if reading is None or is_new or running.started_s > reading.at_s - SETTLED_S:
                total_w += share * _added_w(live, running)
    known = all(node in fresh for node, up in enumerate(live.machines.is_up) if up)
    read_w = sum(each.watts for each in fresh.values()) + cluster.network_w
    return PowerNow(total_w, len(fresh), read_w if fresh and known else None)


def _added_w(live: LiveView, running: Running) -> float:
    """Above idle, with what its hosts draw more."""
    cluster = live.view.cluster
    gpus_w = running.power_w - running.gpus * cluster.types[running.type_index].idle_w
    hosts_w = sum(
        mask.bit_count() * cluster.node_groups[node].host_busy_w_per_gpu
        for node, mask in running.nodes
    )
    return max(gpus_w, 0.0) + hosts_w


def _shares(running: Running) -> list[tuple[int, float]]:
    """Each node and its share of the job."""
    gpus = sum(mask.bit_count() for _, mask in running.nodes)
    return [(node, mask.bit_count() / gpus) for node, mask in running.nodes if gpus]
