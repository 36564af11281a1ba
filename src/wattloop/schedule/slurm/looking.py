"""Looking at Slurm: jobs each round, nodes now and then, and what they mean to a policy."""

import time
from collections.abc import Callable, Mapping

from wattloop.schedule.slurm.client import SlurmClient
from wattloop.schedule.slurm.live_view import LiveView, live_view
from wattloop.schedule.slurm.opened import Opened
from wattloop.schedule.slurm.power import NodePower, power_now
from wattloop.schedule.slurm.round_report import RoundReport
from wattloop.schedule.slurm.site import Site
from wattloop.schedule.slurm.snapshot import Snapshot, snapshot_of

__all__ = ["Looking"]

Readings = Callable[[], Mapping[int, NodePower]]


class Looking:
    """What a round begins with.

    Args:
        client: Slurm.
        site: what is ours.
        readings: power that nodes report, by node number.
        nodes_every_s: how often nodes are asked for.
    """

    def __init__(
        self, client: SlurmClient, site: Site, readings: Readings, nodes_every_s: float
    ) -> None:
        self._client, self._site, self._readings = client, site, readings
        self._nodes_every_s = nodes_every_s
        self._nodes_at_s = float("-inf")
        self._is_up = [True] * len(site.known.names)

    def jobs(self, gate_name: str, opened: Mapping[str, Opened]) -> Snapshot:
        """The jobs now.

        Raises:
            SlurmError: Slurm does not answer.
        """
        if time.monotonic() - self._nodes_at_s >= self._nodes_every_s:
            states = {node.name: node.is_up for node in self._client.nodes()}
            self._is_up = [states.get(name, False) for name in self._site.known.names]
            self._nodes_at_s = time.monotonic()
        jobs = self._client.jobs()
        return snapshot_of(jobs, self._site, gate_name=gate_name, opened=opened)

    def view(
        self,
        snapshot: Snapshot,
        *,
        opened: Mapping[str, Opened],
        use_gpu_s: Mapping[str, float],
        set_aside: Mapping[str, float],
        now_s: float,
        report: RoundReport,
    ) -> LiveView:
        """As a policy sees it; the report has its figures."""
        live = live_view(
            snapshot,
            self._site,
            is_up=self._is_up,
            opened=opened,
            use_gpu_s=use_gpu_s,
            now_s=now_s,
            set_aside=set_aside,
        )
        power = power_now(live, self._readings())
        report.power_w, report.measured_nodes = power.watts, power.measured_nodes
        report.budget_w = self._site.budget_w.at(now_s)
        live.view.power_w = power.under(report.budget_w)
        report.waiting, report.running = len(live.view.queue), len(snapshot.running)
        report.coming, report.free_gpus = len(snapshot.coming), live.view.free.total
        return live
