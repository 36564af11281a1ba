"""Nodes that are away: since when, and what the cluster lacks meanwhile."""

from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.engine.ledger import Ledger
from wattloop.schedule.engine.machines import Machines

__all__ = ["Outages"]


class Outages:
    """Takes nodes out of the machines and the ledger, and puts them back.

    Attributes:
        since_s: node -> when it died, of those that are away.
    """

    def __init__(self, cluster: Cluster, machines: Machines, ledger: Ledger) -> None:
        self._cluster, self._machines, self._ledger = cluster, machines, ledger
        self._ended_gpu_s = [0.0] * len(cluster.types)
        self.since_s: dict[int, float] = {}

    def begin(self, now_s: float, node: int) -> None:
        """A node dies; nothing runs on it any more."""
        self._machines.put_down(node)
        self.since_s[node] = now_s
        host_w, gpus_w = self._idle_w(node)
        self._ledger.add_node_w(-host_w, -gpus_w)

    def end(self, now_s: float, node: int) -> None:
        """It is back."""
        machines = self._machines
        machines.put_up(node)
        away_s = now_s - self.since_s.pop(node)
        self._ended_gpu_s[machines.node_type[node]] += machines.sizes[node] * away_s
        self._ledger.add_node_w(*self._idle_w(node))

    def gpu_s(self, now_s: float) -> list[float]:
        """GPU seconds that GPUs of each type were away by then."""
        machines, found = self._machines, self._ended_gpu_s.copy()
        for node, since_s in self.since_s.items():
            found[machines.node_type[node]] += machines.sizes[node] * (now_s - since_s)
        return found

    def _idle_w(self, node: int) -> tuple[float, float]:
        """What its host draws, and its GPUs with nothing to do."""
        group = self._cluster.node_groups[node]
        idle_w = self._cluster.types[self._machines.node_type[node]].idle_w
        return group.host_w, group.gpus_per_node * idle_w
