"""Slurm's cluster as a view, the same interface that policies use in the simulator."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from wattloop.core.errors import ConfigError
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.engine.machines import Machines, Nodes
from wattloop.schedule.estimates.fleet_oracle import FleetOracle, is_timed, timed_model
from wattloop.schedule.estimates.oracle import PlacementOptions
from wattloop.schedule.free_gpus import FreeGpus
from wattloop.schedule.jobs.kind import JobKind
from wattloop.schedule.jobs.table import JobTable
from wattloop.schedule.queue import JobQueue
from wattloop.schedule.slurm.managed_cluster import ManagedCluster
from wattloop.schedule.slurm.nodes import KnownNodes
from wattloop.schedule.slurm.squeue import SlurmJob, parse_notes
from wattloop.schedule.slurm.state import ReleasedJob
from wattloop.schedule.view import ClusterView, PreemptionLoss, RunningJob, UserUsage


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Jobs at one moment, by their role for the driver.

    Attributes:
        waiting: jobs that the policy places, including those on standby.
        coming: released to free GPUs, and not running yet.
        running: on GPUs of managed nodes, managed or not.
        ending: completing on managed nodes.
        passing: waiting jobs that the reservation blocks and that the driver does not place.
        strangers: waiting jobs that name the reservation although the driver did not release them.
        by_key: all jobs.
    """

    waiting: list[SlurmJob] = field(default_factory=list)
    coming: list[SlurmJob] = field(default_factory=list)
    running: list[SlurmJob] = field(default_factory=list)
    ending: list[SlurmJob] = field(default_factory=list)
    passing: list[SlurmJob] = field(default_factory=list)
    strangers: list[SlurmJob] = field(default_factory=list)
    by_key: dict[str, SlurmJob] = field(default_factory=dict)


def classify_jobs(
    jobs: Sequence[SlurmJob],
    site: ManagedCluster,
    *,
    gate_name: str,
    opened: Mapping[str, ReleasedJob],
) -> Snapshot:
    """Classify the jobs.

    Args:
        jobs: all of Slurm's jobs.
        site: the managed cluster.
        gate_name: name of the driver's reservation; empty without one.
        opened: released jobs.
    """
    found, known = Snapshot(), site.known
    for job in jobs:
        found.by_key[job.key] = job
        if job.has_machines:
            if any(gpus and name in known.numbers for name, gpus in job.placed):
                (found.ending if job.state == "COMPLETING" else found.running).append(job)
        elif job.is_pending:
            _sort_pending(found, job, site, gate_name, opened)
    return found


def _sort_pending(
    found: Snapshot,
    job: SlurmJob,
    site: ManagedCluster,
    gate_name: str,
    opened: Mapping[str, ReleasedJob],
) -> None:
    partitions = job.partition.split(",")
    names_gate = bool(gate_name) and job.reservation == gate_name
    was = opened.get(job.key)
    if names_gate and was is None:
        found.strangers.append(job)
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
        """Free the GPUs of an allocation."""
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


def allocate_machines(
    cluster: Cluster, taken: Mapping[int, int], is_up: Sequence[bool]
) -> Machines:
    """Build the machines with some GPUs allocated and some nodes down.

    Args:
        cluster: the cluster.
        taken: node -> bit mask of allocated GPUs.
        is_up: state of every node.
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


def split_released(
    jobs: Sequence[SlurmJob],
    opened: Mapping[str, ReleasedJob],
    seats: GpuSlots,
    seated: dict[str, Nodes],
) -> tuple[list[SlurmJob], list[SlurmJob]]:
    """Split released jobs into those with free GPUs and those whose GPUs another job has.

    The latter wait again, because Slurm could start older jobs on those GPUs for ever.

    Args:
        jobs: released jobs that have not started.
        opened: their releases.
        seats: free GPUs; changed.
        seated: receives the nodes of jobs with free GPUs.
    """
    coming: list[SlurmJob] = []
    late: list[SlurmJob] = []
    for job in jobs:
        wanted = opened.get(job.key)
        nodes = seats.reserve(wanted.nodes, wanted.gpus) if wanted is not None else ()
        if wanted is not None and sum(mask.bit_count() for _, mask in nodes) == wanted.gpus:
            seated[job.key] = nodes
            coming.append(job)
        else:
            seats.give(nodes)
            late.append(job)
    return coming, late


def running_job(
    options: PlacementOptions,
    number: int,
    job: SlurmJob,
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
    believed_s = work * float(options.sample_s[option])
    if job.time_limit_s is not None:
        believed_s = min(believed_s, job.time_limit_s)
    return RunningJob(
        number, option, type_index, gpus, nodes, started_s, power_w, started_s + believed_s, work
    )


def noted_cap_w(job: SlurmJob) -> float | None:
    """Return the power cap that a driver wrote for the job; None for none."""
    found = parse_notes(job.admin_comment).get("cap_w")
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < 1e5:
        return None
    return float(found)


def loss_of(untouchable: frozenset[int], now_s: float) -> Callable[[RunningJob], PreemptionLoss]:
    """Return the loss of a preemption: a requeued Slurm job loses all its progress."""

    def loss(running: RunningJob) -> PreemptionLoss:
        if running.job in untouchable:
            return PreemptionLoss(math.inf, math.inf)
        passed_s = max(now_s - running.started_s, 0.0)
        whole_s = max(running.expected_end_s - running.started_s, 1e-9)
        share = min(passed_s / whole_s, 1.0)
        return PreemptionLoss(running.work_at_start * share, running.power_w * passed_s)

    return loss


ROUND_S = 2.0
"""Time before a decrease of the budget at which the driver acts, because rounds take time."""
NEVER = 1_000_000
"""Preemption count of a job that may not be preempted: more than any policy allows."""
NO_BACKOFF: Mapping[str, float] = MappingProxyType({})


@dataclass(slots=True)
class SlurmView:
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
    jobs: list[SlurmJob]
    machines: Machines
    coming: frozenset[int]
    untouchable: frozenset[int]


class _Rows:
    """Table of jobs while the view is built."""

    def __init__(self, oracle: FleetOracle) -> None:
        self.oracle = oracle
        self.kinds: dict[JobKind, int] = {}
        self.users: dict[str, int] = {}
        self.kind: list[int] = []
        self.work: list[float] = []
        self.deadline_s: list[float] = []

    def add(self, kind: JobKind, work: float, deadline_s: float) -> None:
        self.kind.append(self.kinds.setdefault(kind, len(self.kinds)))
        self.work.append(work)
        self.deadline_s.append(deadline_s)


def build_view(
    snapshot: Snapshot,
    site: ManagedCluster,
    *,
    is_up: Sequence[bool],
    opened: Mapping[str, ReleasedJob],
    use_gpu_s: Mapping[str, float],
    now_s: float,
    set_aside: Mapping[str, float] = NO_BACKOFF,
) -> SlurmView:
    """Build the view of one moment.

    Args:
        snapshot: the jobs.
        site: the managed cluster.
        is_up: state of every node.
        opened: released jobs.
        use_gpu_s: GPU seconds of each user's finished jobs.
        now_s: seconds since 1970.
        set_aside: job -> end of its back-off, after Slurm did not start it.
    """
    known, believed, oracle = site.known, site.believed, site.oracle
    seats = GpuSlots(known)
    seated = {job.key: seats.take(job.placed) for job in (*snapshot.running, *snapshot.ending)}
    coming_jobs, late = split_released(snapshot.coming, opened, seats, seated)
    waiting = [job for job in (*snapshot.waiting, *late) if set_aside.get(job.key, 0.0) <= now_s]
    listed = sorted(
        [*waiting, *coming_jobs, *snapshot.running], key=lambda job: (job.submit_s, _id(job))
    )
    cluster, rows = known.cluster, _Rows(oracle)
    places: dict[int, Nodes] = {}
    waits, coming = set[int](), set[int]()
    keys_waiting, keys_coming = {j.key for j in waiting}, {j.key for j in coming_jobs}
    for number, job in enumerate(listed):
        said = believed.of(job)
        deadline_s = job.submit_s + said.deadline_s
        if job.key in keys_waiting:
            waits.add(number)
            rows.add(*_offered(oracle, said.kind, said.work, job), deadline_s)
            continue
        if job.key in keys_coming:
            coming.add(number)
        nodes = seated[job.key]
        places[number] = nodes
        gpus = sum(mask.bit_count() for _, mask in nodes) or max(job.gpus, 1)
        type_index = cluster.node_types[nodes[0][0]] if nodes else 0
        kind = believed.running(job, gpus, type_index)
        rows.add(*_offered(oracle, kind, said.work, job), deadline_s)
    users = {name: number for number, name in enumerate(sorted({job.user for job in listed}))}
    table = JobTable(
        kinds=tuple(rows.kinds),
        users=tuple(users),
        arrival_s=np.array([job.submit_s for job in listed], dtype=np.float64),
        kind=np.array(rows.kind, dtype=np.int64),
        user=np.array([users[job.user] for job in listed], dtype=np.int64),
        work=np.array(rows.work, dtype=np.float64),
        deadline_s=np.array(rows.deadline_s, dtype=np.float64),
        priority=np.zeros(len(listed), dtype=np.int64),
        names=tuple(job.key for job in listed),
    )
    queue = JobQueue(table, oracle, [each.idle_w for each in cluster.types])
    for number in sorted(waits):
        queue.add(number, rows.work[number])
    machines = allocate_machines(cluster, seats.taken, is_up)
    use = UserUsage(len(users))
    for name, gpu_s in use_gpu_s.items():
        if name in users:
            use.start(users[name], 1, -gpu_s)
            use.stop(users[name], 1, 0.0)
    running: dict[int, RunningJob] = {}
    for number, nodes in places.items():
        job = listed[number]
        cap_w = opened[job.key].cap_w if job.key in opened else noted_cap_w(job)
        running[number] = found = running_job(
            queue.options(number), number, job, nodes, cap_w, rows.work[number], known, now_s
        )
        use.start(users[job.user], found.gpus, found.started_s)
    untouchable = frozenset(
        number
        for number in running
        if number in coming
        or listed[number].partition not in site.managed
        or not listed[number].may_requeue
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
        loss=loss_of(untouchable, now_s),
        preemptions=[
            NEVER if number in untouchable else job.restarts for number, job in enumerate(listed)
        ],
        is_up=machines.is_up,
        round_s=ROUND_S,
        now_s=now_s,
    )
    return SlurmView(view, listed, machines, frozenset(coming), untouchable)


def _offered(
    oracle: FleetOracle, kind: JobKind | None, work: float, job: SlurmJob
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
    types = kind.types if kind is not None else ()
    timed = JobKind(
        model=timed_model(),
        gpus=(gpus[-1],) if kind is None or not is_timed(kind) else gpus,
        types=types,
        may_spread=kind.may_spread if kind is not None else False,
    )
    return timed, job.time_limit_s or work or 86_400.0


def _id(job: SlurmJob) -> tuple[int, int]:
    number, _, task = job.key.partition("_")
    return int(number), int(task or 0)
