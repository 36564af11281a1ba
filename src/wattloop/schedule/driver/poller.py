"""Poller of Slurm: jobs in each round, classified by their role, and nodes at intervals."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from wattloop.core.errors import ConfigError
from wattloop.schedule.driver.inventory import ReleasedJob, SchedulerJob, SchedulerNode
from wattloop.schedule.driver.managed_cluster import ManagedCluster

Rebuild = Callable[[Sequence[SchedulerNode]], ManagedCluster]
"""Function that rebuilds the managed cluster from the current nodes."""
Shape = tuple[str, str, int, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Jobs at one moment, by their role for the driver.

    Attributes:
        waiting: jobs that the policy places, including those on standby.
        coming: released to free GPUs, and not running yet.
        running: on GPUs of managed nodes, managed or not.
        ending: completing on managed nodes.
        passing: waiting jobs that the reservation blocks and that the driver does not place.
        unreleased: waiting jobs that name the reservation although the driver did not release
            them.
        by_key: all jobs.
    """

    waiting: list[SchedulerJob] = field(default_factory=list)
    coming: list[SchedulerJob] = field(default_factory=list)
    running: list[SchedulerJob] = field(default_factory=list)
    ending: list[SchedulerJob] = field(default_factory=list)
    passing: list[SchedulerJob] = field(default_factory=list)
    unreleased: list[SchedulerJob] = field(default_factory=list)
    by_key: dict[str, SchedulerJob] = field(default_factory=dict)


class QueueClient(Protocol):
    """Client of a scheduler: Slurm's, or that of Kubernetes."""

    @property
    def total_calls(self) -> int:
        """Number of calls so far."""
        ...

    def jobs(self) -> list[SchedulerJob]:
        """Return all jobs that wait or have an allocation."""
        ...

    def nodes(self) -> list[SchedulerNode]:
        """Return all nodes."""
        ...


class QueuePoller:
    """Poller at the start of each round.

    Args:
        rebuild: called when the nodes have changed; None continues with the first ones.

    Attributes:
        site: the managed cluster; the caller sets it after a change of nodes.
        fault: why changed nodes could not be added; empty without a problem.
    """

    def __init__(
        self,
        client: QueueClient,
        site: ManagedCluster,
        nodes_every_s: float,
        rebuild: Rebuild | None = None,
    ) -> None:
        self.site = site
        self.fault = ""
        self._client, self._rebuild = client, rebuild
        self._nodes_every_s = nodes_every_s
        self._nodes_at_s = float("-inf")
        self._shapes: frozenset[Shape] | None = None
        self._is_up: dict[str, bool] = {}

    @property
    def is_up(self) -> list[bool]:
        return [self._is_up.get(name, False) for name in self.site.known.names]

    def nodes(self) -> ManagedCluster | None:
        """Query the nodes if it is time; return the managed cluster if it has changed."""
        if time.monotonic() - self._nodes_at_s < self._nodes_every_s:
            return None
        nodes = self._client.nodes()
        self._nodes_at_s = time.monotonic()
        self._is_up = {node.name: node.is_up for node in nodes}
        shapes = frozenset((node.name, node.gpu_type, node.gpus, node.partitions) for node in nodes)
        before, self._shapes = self._shapes, shapes
        if before in (None, shapes) or self._rebuild is None:
            return None
        try:
            found = self._rebuild(nodes)
        except ConfigError as error:
            self.fault = f"nodes have changed, and are not taken in: {error}"
            return None
        found.estimates.on_refusal = self.site.estimates.on_refusal
        is_same = found.known == self.site.known and found.shared == self.site.shared
        return None if is_same else found

    def query_nodes_again(self) -> None:
        """Query the nodes in the next round, after a change could not be applied."""
        self._shapes, self._nodes_at_s = frozenset(), float("-inf")

    def jobs(self, gate_name: str, released: Mapping[str, ReleasedJob]) -> Snapshot:
        """Query the jobs."""
        return self.classify(self._client.jobs(), gate_name, released)

    def classify(
        self, jobs: Sequence[SchedulerJob], gate_name: str, released: Mapping[str, ReleasedJob]
    ) -> Snapshot:
        return classify_jobs(jobs, self.site, gate_name, released)


def classify_jobs(
    jobs: Sequence[SchedulerJob],
    site: ManagedCluster,
    gate_name: str,
    released: Mapping[str, ReleasedJob],
) -> Snapshot:
    """Sort jobs by role; `gate_name` is the driver's reservation, empty without one."""
    found, known = Snapshot(), site.known
    for job in jobs:
        found.by_key[job.key] = job
        if job.has_machines:
            if any(gpus and name in known.numbers for name, gpus in job.placed):
                (found.ending if job.state == "COMPLETING" else found.running).append(job)
        elif job.is_pending:
            _classify_pending(found, job, site, gate_name, released.get(job.key))
    return found


def _classify_pending(
    found: Snapshot,
    job: SchedulerJob,
    site: ManagedCluster,
    gate_name: str,
    was: ReleasedJob | None,
) -> None:
    partitions = job.partition.split(",")
    names_gate = bool(gate_name) and job.reservation == gate_name
    if names_gate and was is None:
        found.unreleased.append(job)
        return
    if job.reservation and not names_gate:
        return  # it runs on nodes that are not managed
    is_ours = all(name in site.managed for name in partitions) and job.gpus > 0
    if is_ours and was is not None and was.why == "start" and names_gate:
        found.coming.append(job)
    elif is_ours:
        if job.is_eligible:
            found.waiting.append(job)
    elif any(name in site.managed or name in site.shared for name in partitions) and not names_gate:
        found.passing.append(job)
