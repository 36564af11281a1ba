"""Looking at Slurm: jobs each round, nodes now and then, and what they mean to a policy."""

import time
from collections.abc import Callable, Mapping, Sequence

from wattloop.core.errors import ConfigError
from wattloop.schedule.slurm.event_log import RoundReport
from wattloop.schedule.slurm.managed_cluster import ManagedCluster
from wattloop.schedule.slurm.nodes import KnownNodes, SlurmNode
from wattloop.schedule.slurm.power import NodePower, power_now
from wattloop.schedule.slurm.released_job import ReleasedJob
from wattloop.schedule.slurm.scontrol import SlurmClient
from wattloop.schedule.slurm.view import LiveView, Snapshot, live_view, snapshot_of

Readings = Callable[[KnownNodes], Mapping[int, NodePower]]


"""Power that nodes report, by their numbers."""


Resite = Callable[[Sequence[SlurmNode]], ManagedCluster]


"""What is ours, by the nodes that there are now."""


Shape = tuple[str, str, int, tuple[str, ...]]


def no_readings(known: KnownNodes) -> Mapping[int, NodePower]:
    """Where no node reports its power."""
    del known
    return {}


class SlurmPoller:
    """What a round begins with.

    Args:
        client: Slurm.
        site: what is ours.
        readings: power that nodes report, by node number.
        nodes_every_s: how often nodes are asked for.
        resite: called when other nodes are there than before; None to go on with the first ones.

    Attributes:
        site: what is ours.
        fault: why nodes that have changed are not taken in; empty when they are.
    """

    def __init__(
        self,
        client: SlurmClient,
        site: ManagedCluster,
        readings: Readings,
        nodes_every_s: float,
        resite: Resite | None = None,
    ) -> None:
        self.site = site
        self.fault = ""
        self._client, self._readings, self._resite = client, readings, resite
        self._nodes_every_s = nodes_every_s
        self._nodes_at_s = float("-inf")
        self._shapes: frozenset[Shape] | None = None
        self._is_up: dict[str, bool] = {}

    def nodes(self) -> ManagedCluster | None:
        """Look at the nodes where it is time; what is ours now, if that is something else.

        It is for the caller to make it so, with `site`.

        Raises:
            SlurmError: Slurm does not answer.
        """
        if time.monotonic() - self._nodes_at_s < self._nodes_every_s:
            return None
        nodes = self._client.nodes()
        self._nodes_at_s = time.monotonic()
        self._is_up = {node.name: node.is_up for node in nodes}
        shapes = frozenset((node.name, node.gpu_type, node.gpus, node.partitions) for node in nodes)
        before, self._shapes = self._shapes, shapes
        if before in (None, shapes) or self._resite is None:
            return None
        try:
            found = self._resite(nodes)
        except ConfigError as error:
            self.fault = f"nodes have changed, and are not taken in: {error}"
            return None
        found.believed.on_refusal = self.site.believed.on_refusal
        is_same = found.known == self.site.known and found.shared == self.site.shared
        return None if is_same else found

    def ask_again(self) -> None:
        """Nodes have changed, and nothing came of it: look at them in the next round."""
        self._shapes, self._nodes_at_s = frozenset(), float("-inf")

    def jobs(self, gate_name: str, opened: Mapping[str, ReleasedJob]) -> Snapshot:
        """The jobs now.

        Raises:
            SlurmError: Slurm does not answer.
        """
        jobs = self._client.jobs()
        return snapshot_of(jobs, self.site, gate_name=gate_name, opened=opened)

    def view(
        self,
        snapshot: Snapshot,
        *,
        opened: Mapping[str, ReleasedJob],
        use_gpu_s: Mapping[str, float],
        set_aside: Mapping[str, float],
        now_s: float,
        report: RoundReport,
    ) -> LiveView:
        """As a policy sees it; the report has its figures."""
        live = live_view(
            snapshot,
            self.site,
            is_up=[self._is_up.get(name, False) for name in self.site.known.names],
            opened=opened,
            use_gpu_s=use_gpu_s,
            now_s=now_s,
            set_aside=set_aside,
        )
        power = power_now(live, self._readings(self.site.known))
        report.power_w, report.measured_nodes = power.watts, power.measured_nodes
        report.budget_w = self.site.budget_w.at(now_s)
        live.view.power_w = power.under(report.budget_w)
        report.waiting, report.running = len(live.view.queue), len(snapshot.running)
        report.coming, report.free_gpus = len(snapshot.coming), live.view.free.total
        return live
