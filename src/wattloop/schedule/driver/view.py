"""Slurm's cluster as a view, the same interface that policies use in the simulator."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from wattloop.core.errors import ConfigError
from wattloop.fleet.slurm_text import parse_notes
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.driver.inventory import KnownNodes, ReleasedJob, SchedulerJob
from wattloop.schedule.driver.managed_cluster import ManagedCluster
from wattloop.schedule.driver.poller import Snapshot
from wattloop.schedule.engine.machines import Machines, Nodes
from wattloop.schedule.estimates.fleet_file import FleetOracle, is_timed, timed_model
from wattloop.schedule.estimates.oracle import PlacementOptions
from wattloop.schedule.free_gpus import FreeGpus
from wattloop.schedule.jobs.kind import JobKind
from wattloop.schedule.jobs.table import JobTable
from wattloop.schedule.queue import JobQueue
from wattloop.schedule.view import ClusterView, PreemptionLoss, RunningJob, UserUsage

ROUND_S = 2.0
"""Time before a decrease of the budget at which the driver acts, because rounds take time."""
NEVER = 1_000_000
"""Preemption count of a job that may not be preempted: more than any policy allows."""
NO_BACKOFF: Mapping[str, float] = MappingProxyType({})


@dataclass(slots=True)
class LiveView:
    """View of Slurm with the job numbers and machines behind it.

    Attributes:
        view: view for the policy. Job numbers are valid for this round only.
        jobs: Slurm jobs, by number.
        machines: allocations; changed while a round is planned.
        coming: numbers of released jobs that have not started.
        untouchable: numbers of running jobs that are not managed, cannot be requeued, or have
            not started.
    """

    view: ClusterView
    jobs: list[SchedulerJob]
    machines: Machines
    coming: frozenset[int]
    untouchable: frozenset[int]


def build_view(
    snapshot: Snapshot,
    site: ManagedCluster,
    *,
    is_up: Sequence[bool],
    released: Mapping[str, ReleasedJob],
    use_gpu_s: Mapping[str, float],
    now_s: float,
    set_aside: Mapping[str, float] = NO_BACKOFF,
) -> LiveView:
    """Build the view of one moment.

    `set_aside` maps jobs that Slurm did not start to the end of their back-off.
    """
    known, estimates, oracle = site.known, site.estimates, site.oracle
    cluster, slots = known.cluster, GpuSlots(known)
    allocated = {job.key: slots.take(job.placed) for job in (*snapshot.running, *snapshot.ending)}
    coming_jobs, late = split_released(snapshot.coming, released, slots, allocated)
    waiting = [job for job in (*snapshot.waiting, *late) if set_aside.get(job.key, 0.0) <= now_s]
    jobs = sorted([*waiting, *coming_jobs, *snapshot.running], key=lambda j: (j.submit_s, _id(j)))
    keys_waiting, keys_coming = {j.key for j in waiting}, {j.key for j in coming_jobs}
    coming = frozenset(n for n, job in enumerate(jobs) if job.key in keys_coming)
    placed: dict[int, Nodes] = {}
    kinds, kind_numbers, work, deadline_s = dict[JobKind, int](), list[int](), [], []
    for number, job in enumerate(jobs):
        estimate = estimates.estimate(job)
        kind = estimate.kind
        if job.key not in keys_waiting:
            nodes = placed[number] = allocated[job.key]
            gpus = sum(mask.bit_count() for _, mask in nodes) or max(job.gpus, 1)
            kind = estimates.running_kind(
                job, gpus, cluster.node_types[nodes[0][0]] if nodes else 0
            )
        kind, job_work = _with_estimate(oracle, kind, estimate.work, job)
        kind_numbers.append(kinds.setdefault(kind, len(kinds)))
        work.append(job_work)
        deadline_s.append(job.submit_s + estimate.deadline_s)
    users = {name: number for number, name in enumerate(sorted({job.user for job in jobs}))}
    table = JobTable(
        kinds=tuple(kinds),
        users=tuple(users),
        arrival_s=np.array([job.submit_s for job in jobs], dtype=np.float64),
        kind=np.array(kind_numbers, dtype=np.int64),
        user=np.array([users[job.user] for job in jobs], dtype=np.int64),
        work=np.array(work, dtype=np.float64),
        deadline_s=np.array(deadline_s, dtype=np.float64),
        priority=np.zeros(len(jobs), dtype=np.int64),
        names=tuple(job.key for job in jobs),
    )
    queue = JobQueue(table, oracle, [each.idle_w for each in cluster.types])
    for number in range(len(jobs)):
        if number not in placed:
            queue.add(number, work[number])
    machines = allocate_machines(cluster, slots.taken, is_up)
    use = UserUsage(len(users))
    for name, gpu_s in use_gpu_s.items():
        if name in users:
            use.start(users[name], 1, -gpu_s)
            use.stop(users[name], 1, 0.0)
    running: dict[int, RunningJob] = {}
    for number, nodes in placed.items():
        job = jobs[number]
        cap_w = released[job.key].cap_w if job.key in released else noted_cap_w(job)
        running[number] = found = running_job(
            queue.options(number), number, job, nodes, cap_w, work[number], known, now_s
        )
        use.start(users[job.user], found.gpus, found.started_s)
    untouchable = frozenset(
        number
        for number in running
        if number in coming
        or jobs[number].partition not in site.managed
        or not jobs[number].may_requeue
    )
    view = ClusterView(
        cluster=cluster,
        jobs=table,
        queue=queue,
        free=machines.free,
        running=running,
        use=use,
        budget_w=site.budget_w,
        power_error=oracle.power_error,
        time_error=oracle.time_error,
        loss=_preemption_loss(untouchable, now_s),
        preemptions=[
            NEVER if number in untouchable else job.restarts for number, job in enumerate(jobs)
        ],
        is_up=machines.is_up,
        round_s=ROUND_S,
        now_s=now_s,
    )
    return LiveView(view, jobs, machines, coming, untouchable)


class GpuSlots:
    """Assignment of GPUs to jobs.

    Attributes:
        taken: node -> bit mask of allocated GPUs.
    """

    def __init__(self, known: KnownNodes) -> None:
        self._known = known
        self.taken: dict[int, int] = {}

    def take(self, placed: Iterable[tuple[str, int]]) -> Nodes:
        """Allocate the GPUs of a running job; nodes that are not managed are skipped."""
        found = []
        for name, gpus in placed:
            node = self._known.numbers.get(name)
            if node is not None and (mask := self._take(node, gpus)):
                found.append((node, mask))
        return tuple(found)

    def reserve(self, names: Iterable[str], gpus: int) -> Nodes:
        """Allocate GPUs for a released job: on the named nodes, or on any node with free GPUs."""
        found, left = [], gpus
        for name in tuple(names) or self._known.names:
            node = self._known.numbers.get(name)
            if node is not None and left and (mask := self._take(node, left)):
                found.append((node, mask))
                left -= mask.bit_count()
        return tuple(found)

    def give(self, nodes: Nodes) -> None:
        for node, mask in nodes:
            self.taken[node] &= ~mask

    def _take(self, node: int, gpus: int) -> int:
        size = self._known.cluster.node_groups[node].gpus_per_node
        had, mask = self.taken.get(node, 0), 0
        for number in range(size):
            if mask.bit_count() < gpus and not (had >> number) & 1:
                mask |= 1 << number
        self.taken[node] = had | mask
        return mask


def split_released(
    jobs: Sequence[SchedulerJob],
    released: Mapping[str, ReleasedJob],
    slots: GpuSlots,
    allocated: dict[str, Nodes],
) -> tuple[list[SchedulerJob], list[SchedulerJob]]:
    """Split released jobs into those with free GPUs and those whose GPUs another job has.

    The latter wait again, because Slurm could start older jobs on those GPUs for ever.

    `slots` and `allocated` are changed.
    """
    coming: list[SchedulerJob] = []
    late: list[SchedulerJob] = []
    for job in jobs:
        wanted = released.get(job.key)
        nodes = slots.reserve(wanted.nodes, wanted.gpus) if wanted is not None else ()
        if wanted is not None and sum(mask.bit_count() for _, mask in nodes) == wanted.gpus:
            allocated[job.key] = nodes
            coming.append(job)
        else:
            slots.give(nodes)
            late.append(job)
    return coming, late


def allocate_machines(
    cluster: Cluster, taken: Mapping[int, int], is_up: Sequence[bool]
) -> Machines:
    """Build the machines with some GPUs allocated and some nodes down.

    `taken` maps nodes to bit masks of allocated GPUs.
    """
    machines = Machines(cluster)
    for each in machines.nodes_with:
        for nodes in each:
            nodes.clear()
    # The node that was added last is allocated first, so this prefers low node numbers.
    for node in reversed(range(len(machines.sizes))):
        machines.free_mask[node] &= ~taken.get(node, 0)
        machines.is_up[node] = is_up[node]
        if is_up[node]:
            free = machines.free_mask[node].bit_count()
            machines.nodes_with[machines.node_type[node]][free][node] = None
    machines.free = FreeGpus([[len(nodes) for nodes in each] for each in machines.nodes_with])
    return machines


def running_job(
    options: PlacementOptions,
    number: int,
    job: SchedulerJob,
    nodes: Nodes,
    cap_w: float | None,
    work: float,
    known: KnownNodes,
    now_s: float,
) -> RunningJob:
    """Convert a running job, with the option closest to its allocation."""
    type_index = known.cluster.node_types[nodes[0][0]] if nodes else int(options.type_index[0])
    gpus = sum(mask.bit_count() for _, mask in nodes) or int(options.gpus[0])
    mine = np.flatnonzero((options.type_index == type_index) & (options.gpus == gpus))
    if not len(mine):
        mine = np.arange(len(options))
    option = int(mine[np.argmax(options.cap_w[mine])])
    if cap_w is not None:
        option = int(mine[np.argmin(np.abs(options.cap_w[mine] - cap_w))])
    started_s = job.start_s or now_s
    power_w = float(options.power_w[option])
    estimate_s = work * float(options.sample_s[option])
    if job.time_limit_s is not None:
        estimate_s = min(estimate_s, job.time_limit_s)
    return RunningJob(
        number, option, type_index, gpus, nodes, started_s, power_w, started_s + estimate_s, work
    )


def noted_cap_w(job: SchedulerJob) -> float | None:
    """Return the power cap that a driver wrote for the job; None for none."""
    found = parse_notes(job.admin_comment).get("cap_w")
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < 1e5:
        return None
    return float(found)


def _preemption_loss(
    untouchable: frozenset[int], now_s: float
) -> Callable[[RunningJob], PreemptionLoss]:
    """Return the loss of a preemption: a requeued Slurm job loses all its progress."""

    def loss(running: RunningJob) -> PreemptionLoss:
        if running.job in untouchable:
            return PreemptionLoss(math.inf, math.inf)
        passed_s = max(now_s - running.started_s, 0.0)
        whole_s = max(running.expected_end_s - running.started_s, 1e-9)
        share = min(passed_s / whole_s, 1.0)
        return PreemptionLoss(running.work_at_start * share, running.power_w * passed_s)

    return loss


def _with_estimate(
    oracle: FleetOracle, kind: JobKind | None, work: float, job: SchedulerJob
) -> tuple[JobKind, float]:
    """Return the job's kind if the oracle has an estimate now, else a kind by its time limit."""
    if kind is not None:
        try:
            options = oracle.soon(kind)
            if options is not None and len(options):
                return kind, work
        except ConfigError:
            pass
    gpus = kind.gpus if kind is not None else (max(job.gpus, 1),)
    timed = JobKind(
        model=timed_model(),
        gpus=(gpus[-1],) if kind is None or not is_timed(kind) else gpus,
        types=kind.types if kind is not None else (),
        may_spread=kind.may_spread if kind is not None else False,
    )
    return timed, job.time_limit_s or work or 86_400.0


def _id(job: SchedulerJob) -> tuple[int, int]:
    number, _, task = job.key.partition("_")
    return (int(number), int(task or 0)) if number.isdecimal() else (0, 0)
