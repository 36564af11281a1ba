"""Slurm's cluster as a view, the same interface that policies use in the simulator."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from wattloop.core.errors import ConfigError
from wattloop.fleet.slurm_text import parse_notes
from wattloop.schedule.cluster.cluster import Cluster, NodeEvent
from wattloop.schedule.driver.inventory import KnownNodes, ReleasedJob, SchedulerJob
from wattloop.schedule.driver.managed_cluster import ManagedCluster
from wattloop.schedule.driver.poller import Snapshot
from wattloop.schedule.engine.machines import Machines, Nodes, why_never
from wattloop.schedule.engine.settings import EngineSettings
from wattloop.schedule.engine.simulation import Simulation
from wattloop.schedule.estimates.fleet_file import FleetOracle, is_timed, timed_model
from wattloop.schedule.estimates.oracle import PlacementOptions
from wattloop.schedule.free_gpus import FreeGpus
from wattloop.schedule.jobs.kind import JobKind
from wattloop.schedule.jobs.table import JobTable
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.queue import JobQueue
from wattloop.schedule.view import (
    ClusterView,
    JobAges,
    PreemptionLoss,
    RealisedDelay,
    RunningJob,
    UserUsage,
)

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


MOST_ENDED = 2_000
"""Ended jobs in a record, which is simulated again with each of them."""
DELAY_PERIOD_S = 60.0
REFERENCE_SHARE = 1 / 30
"""Most of a driver's time that the simulations of the references may take."""


@dataclass(slots=True)
class _RecordedJob:
    """Job since its arrival, or since the record began.

    Attributes:
        arrival_s, ended_s: seconds since 1970. It ended between the last round that listed it and
            the next one; the middle counts.
        work: estimated work, without what it had done before the record began.
        done: work of its run so far, by estimates; the true work of a job that has ended.
        rate: work per second of its run; 0 while it waits.
    """

    kind: JobKind
    user: str
    arrival_s: float
    work: float
    done: float = 0.0
    rate: float = 0.0
    ended_s: float = math.inf


class DelayRecord:
    """Ages of a driver's jobs, and of the same jobs in schedules of the policy's references.

    This is the driver's counterpart of the schedules that a simulation keeps for
    `ClusterView.delay`. How long a job takes is known when it ends: then its work is corrected, and
    the references are simulated again. After `MOST_ENDED` jobs the record begins again with the
    jobs present: without their predecessors, a reference would find an emptier cluster.
    """

    def __init__(self, references: Sequence[Policy]) -> None:
        self._references = references
        self._jobs: dict[str, _RecordedJob] = {}
        self._site: ManagedCluster | None = None
        self._is_up: list[bool] = []
        self._node_events: list[NodeEvent] = []
        self._since_s = self._last_s = self._next_s = 0.0
        self._delay: RealisedDelay | None = None

    def update(
        self, live: LiveView, snapshot: Snapshot, site: ManagedCluster
    ) -> RealisedDelay | None:
        """Record the jobs of a round; return the delay, computed once a minute."""
        if not self._references:
            return None
        now_s = live.view.now_s
        ended = sum(job.ended_s < math.inf for job in self._jobs.values())
        is_set_back = now_s < self._last_s  # the clock
        if site is not self._site or ended >= MOST_ENDED or is_set_back:
            self._site, self._is_up = site, [True] * len(live.view.is_up)
            self._jobs, self._node_events = {}, []
            self._since_s = self._last_s = self._next_s = now_s
        self._record(live, snapshot, now_s)
        if now_s >= self._next_s:
            begun_s = time.perf_counter()
            ages = tuple(self._ages(each, site, now_s) for each in self._references)
            took_s = time.perf_counter() - begun_s
            self._next_s = now_s + max(DELAY_PERIOD_S, took_s / REFERENCE_SHARE)
            own_s = [min(job.ended_s, now_s) - job.arrival_s for job in self._jobs.values()]
            present = sum(job.ended_s > now_s for job in self._jobs.values())
            self._delay = RealisedDelay(len(own_s), JobAges(present, sum(own_s)), ages)
        return self._delay

    def _record(self, live: LiveView, snapshot: Snapshot, now_s: float) -> None:
        view, jobs = live.view, self._jobs
        for number, job in enumerate(live.jobs):
            work, running = float(view.jobs.work[number]), view.running.get(number)
            rate = done = before = 0.0
            if running is not None and number not in live.coming:
                time_s = float(view.queue.estimates_for(number, work).time_s[running.option])
                rate = work / max(time_s, 1e-9)
                done = rate * max(now_s - max(running.started_s, self._last_s), 0.0)
                before = rate * max(self._since_s - running.started_s, 0.0)
            if job.key not in jobs:
                kind = view.jobs.kinds[view.jobs.kind[number]]
                if why_never(kind, view.queue.options(number), view.cluster):
                    continue
                arrival_s = min(max(job.submit_s, self._since_s), now_s)
                left = max(work - before, 0.01 * work)
                jobs[job.key] = _RecordedJob(kind, job.user, arrival_s, left)
            each = jobs[job.key]
            each.ended_s = math.inf  # a job that was stopped may have been listed as completing
            each.done, each.rate = each.done + done if running is not None else 0.0, rate
        for key, each in list(jobs.items()):
            listed = snapshot.by_key.get(key)
            if each.ended_s <= now_s or (listed is not None and listed.state != "COMPLETING"):
                continue
            if not each.done:  # cancelled while it waited
                del jobs[key]
                continue
            each.ended_s = (self._last_s + now_s) / 2
            each.done += each.rate * (each.ended_s - self._last_s)
        for node, is_up in enumerate(view.is_up):
            if is_up != self._is_up[node]:
                self._is_up[node] = is_up
                self._node_events.append(NodeEvent(now_s, node, is_up))
        self._last_s = now_s

    def _ages(self, policy: Policy, site: ManagedCluster, now_s: float) -> JobAges:
        """Return the ages of the recorded jobs under another policy, up to now."""
        jobs = sorted(self._jobs.values(), key=lambda job: job.arrival_s)
        kinds = {kind: number for number, kind in enumerate({job.kind: None for job in jobs})}
        users = {name: number for number, name in enumerate({job.user: None for job in jobs})}
        work = [job.done if job.ended_s <= now_s else max(job.done, job.work) for job in jobs]
        table = JobTable(
            kinds=tuple(kinds),
            users=tuple(users),
            arrival_s=np.array([job.arrival_s - self._since_s for job in jobs], dtype=np.float64),
            kind=np.array([kinds[job.kind] for job in jobs], dtype=np.int64),
            user=np.array([users[job.user] for job in jobs], dtype=np.int64),
            work=np.array(work, dtype=np.float64),
            deadline_s=np.full(len(jobs), np.inf),
            priority=np.zeros(len(jobs), dtype=np.int64),
        )
        events = (each._replace(time_s=each.time_s - self._since_s) for each in self._node_events)
        settings = EngineSettings(
            budget_w=site.budget_w.shifted(self._since_s), node_events=tuple(events)
        )
        cluster = site.known.cluster
        simulation = Simulation(cluster, table, policy, truth=site.oracle, settings=settings)
        simulation.run(now_s - self._since_s)
        return simulation.world.ages(now_s - self._since_s)


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
