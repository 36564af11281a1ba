"""Poller of Slurm: jobs in each round, nodes at intervals, and the view for the policy."""

import time
from collections.abc import Callable, Mapping, Sequence

from wattloop.core.errors import ConfigError
from wattloop.schedule.slurm.client import SlurmClient
from wattloop.schedule.slurm.event_log import RoundReport
from wattloop.schedule.slurm.managed_cluster import ManagedCluster
from wattloop.schedule.slurm.nodes import KnownNodes, SlurmNode
from wattloop.schedule.slurm.power import NodePower, power_now
from wattloop.schedule.slurm.state import ReleasedJob
from wattloop.schedule.slurm.view import SlurmView, Snapshot, build_view, classify_jobs

Readings = Callable[[KnownNodes], Mapping[int, NodePower]]
"""Function that returns the measured power of nodes, by node number."""
Resite = Callable[[Sequence[SlurmNode]], ManagedCluster]
"""Function that rebuilds the managed cluster from the current nodes."""
Shape = tuple[str, str, int, tuple[str, ...]]


def no_readings(known: KnownNodes) -> Mapping[int, NodePower]:
    """Return no readings, for clusters without measured power."""
    del known
    return {}


class SlurmPoller:
    """Poller at the start of each round.

    Args:
        client: Slurm.
        site: the managed cluster.
        readings: measured power of nodes, by node number.
        nodes_every_s: interval between queries of the nodes.
        resite: called when the nodes have changed; None continues with the first ones.

    Attributes:
        site: the managed cluster.
        fault: why changed nodes could not be added; empty without a problem.
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
        """Query the nodes if it is time; return the managed cluster if it has changed.

        The caller makes the change effective by setting `site`.

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
        """Query the nodes again in the next round, after a change could not be applied."""
        self._shapes, self._nodes_at_s = frozenset(), float("-inf")

    def jobs(self, gate_name: str, opened: Mapping[str, ReleasedJob]) -> Snapshot:
        """Query the jobs.

        Raises:
            SlurmError: Slurm does not answer.
        """
        jobs = self._client.jobs()
        return classify_jobs(jobs, self.site, gate_name=gate_name, opened=opened)

    def view(
        self,
        snapshot: Snapshot,
        *,
        opened: Mapping[str, ReleasedJob],
        use_gpu_s: Mapping[str, float],
        set_aside: Mapping[str, float],
        now_s: float,
        report: RoundReport,
    ) -> SlurmView:
        """Build the view for the policy and enter its figures into the report."""
        live = build_view(
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
