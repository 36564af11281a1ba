"""Execute actions: starts, ends, preemptions, cap changes and node failures."""

import math
from array import array
from heapq import heappush
from typing import NamedTuple

import numpy as np

from wattloop.core.errors import ConfigError
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.engine.event_log import EventKind, EventLog
from wattloop.schedule.engine.job_segment import JobSegment, Neighbours
from wattloop.schedule.engine.machines import Machines, Nodes
from wattloop.schedule.engine.power_ledger import PowerLedger
from wattloop.schedule.engine.settings import EngineSettings
from wattloop.schedule.estimates.oracle import Oracle, PlacementOptions, Shape
from wattloop.schedule.jobs.kind import JobKind
from wattloop.schedule.jobs.table import JobTable
from wattloop.schedule.queue import JobQueue
from wattloop.schedule.view import PreemptionLoss, RunningJob, UserUsage


class Accounts:
    """Columns over all jobs, in arrays: a million jobs take 50 MB.

    Args:
        jobs: how many there are.
        types: GPU types of the cluster.

    Attributes:
        started_s, finished_s: first start and end; NaN for never.
        energy_j: drawn by its GPUs while it had them, up to its last stop.
        wasted_j: the part of it whose work was lost or that went into restarts.
        gpu_s: GPU seconds.
        preemptions, interruptions: how often it was stopped, by the policy and by a dead node.
        busy_gpu_s: GPU seconds of work by GPU type.
    """

    def __init__(self, jobs: int, types: int) -> None:
        self.started_s = array("d", [math.nan]) * jobs
        self.finished_s = array("d", [math.nan]) * jobs
        self.energy_j = array("d", [0.0]) * jobs
        self.wasted_j = array("d", [0.0]) * jobs
        self.gpu_s = array("d", [0.0]) * jobs
        self.preemptions = array("l", [0]) * jobs
        self.interruptions = array("l", [0]) * jobs
        self.busy_gpu_s = [0.0] * types


class JobOption(NamedTuple):
    """One option of a kind.

    Attributes:
        shape: what it needs of the machines.
        power_w: its GPUs draw, truly.
        sample_s: seconds per sample, truly.
        believed_sample_s: as the policy is told, before what is particular to a job.
        step_work: samples of one iteration.
        idle_w: its GPUs draw when nothing runs on them.
    """

    shape: Shape
    power_w: float
    sample_s: float
    believed_sample_s: float
    step_work: float
    idle_w: float


def choices_of(kind: JobKind, truth: Oracle, oracle: Oracle, cluster: Cluster) -> list[JobOption]:
    """The options of a kind, by number.

    Raises:
        ConfigError: the two oracles do not speak of the same options, or one is no figure.
    """
    true, believed = truth.options(kind), oracle.options(kind)
    if true is not believed and not _are_alike(true, believed):
        raise ConfigError(
            f"oracles {truth.name!r} and {oracle.name!r} differ in the options of {kind.label}: "
            "what a policy chooses must be what is carried out; give both the same cluster"
        )
    for name, column in (("sample_s", true.sample_s), ("power_w", true.power_w)):
        if not np.all(np.isfinite(column) & (column >= 0.0)):
            raise ConfigError(f"oracle {truth.name!r}: {name} of {kind.label} is negative or NaN")
    idle_w = np.array([each.idle_w for each in cluster.types])
    columns = (
        true.shapes(),
        true.power_w.tolist(),
        true.sample_s.tolist(),
        believed.sample_s.tolist(),
        (true.batch * true.gpus).astype(float).tolist(),
        (idle_w[true.type_index] * true.gpus).tolist(),
    )
    return [JobOption._make(row) for row in zip(*columns, strict=True)]


def _are_alike(one: PlacementOptions, other: PlacementOptions) -> bool:
    return (
        one.shapes() == other.shapes()
        and np.array_equal(one.batch, other.batch)
        and np.allclose(one.cap_w, other.cap_w)
    )


class Outages:
    """Takes nodes out of the machines and the ledger, and puts them back.

    Attributes:
        since_s: node -> when it died, of those that are away.
    """

    def __init__(self, cluster: Cluster, machines: Machines, ledger: PowerLedger) -> None:
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


Entry = tuple[float, int, int, int]
"""An event to come: time, what, about which job or node, and which version of it."""
END = 0
BEGIN, REST = 5, 6
"""A job that was started begins to work; a job's work is done, and its GPUs are not yet free."""
START, FINISH = int(EventKind.START), int(EventKind.FINISH)


class Execution:
    """What is true of a simulated cluster, and the only place that changes it.

    Args:
        cluster: the machines.
        jobs: all jobs there will be.
        truth, oracle: time and power as they turn out, and as policies are told.
        settings: rules of this world.
    """

    def __init__(
        self,
        cluster: Cluster,
        jobs: JobTable,
        truth: Oracle,
        oracle: Oracle,
        settings: EngineSettings,
    ) -> None:
        self.cluster, self.jobs, self.settings = cluster, jobs, settings
        self.oracle = oracle
        self.choices = [choices_of(kind, truth, oracle, cluster) for kind in jobs.kinds]
        self.machines = Machines(cluster)
        self.ledger = PowerLedger(cluster, settings)
        self.outages = Outages(cluster, self.machines, self.ledger)
        self.log = EventLog()
        self.use = UserUsage(len(jobs.users))
        self.accounts = Accounts(len(jobs), len(cluster.types))
        self.queue = JobQueue(jobs, oracle, [each.idle_w for each in cluster.types])
        self.running: dict[int, JobSegment] = {}
        self.heap: list[Entry] = []
        self._versions: dict[int, int] = {}
        self.kind = self.queue.kind_of
        self._user: list[int] = jobs.user.tolist()
        self._rules = settings.preemption
        self.promised_w = 0.0
        """What the cluster is believed to draw beyond what it draws: for jobs that were started and
        do not work yet, and for those that have ended and nobody knows it yet.
        """
        self.stopped_s = 0.0
        """When a job was last stopped."""
        self._start_latency_s = settings.start_latency_s
        self._end_latency_s = settings.end_latency_s
        self._has_latency = settings.start_latency_s > 0.0 or settings.end_latency_s > 0.0
        self._has_factors = not self.queue.is_exact
        self._neighbours = (
            Neighbours(len(cluster.node_groups), settings.interference)
            if settings.interference or settings.node_events
            else None
        )
        self._idle_w = [each.idle_w for each in cluster.types]
        self._host_busy_w = [group.host_busy_w_per_gpu for group in cluster.node_groups]
        self._has_busy_hosts = any(self._host_busy_w)

    def start(self, now_s: float, job: int, option: int) -> bool:
        """Start a waiting job; False, with nothing changed, when its GPUs cannot be had."""
        kind = self.kind[job]
        shape, power_w, sample_s, believed_s, step_work, idle_w = self.choices[kind][option]
        nodes = self.machines.take_if_free(shape)
        if nodes is None:
            return False
        work = self.queue.remove(job)
        started_s = self.accounts.started_s
        trains_from_s, version = now_s + self._start_latency_s, 0
        if started_s[job] == started_s[job]:  # NaN, for never, is not itself
            trains_from_s += self._rules.restart_s
            version = self._versions.pop(job)
        else:
            started_s[job] = now_s
        if self._has_factors:
            believed_s *= self._share(job, kind, option)
        believed_s *= work
        if self._rules.pauses:
            believed_s = self._rules.elapsed_s(believed_s)
        type_index, gpus, _ = shape
        self.running[job] = stretch = JobSegment(
            job,
            option,
            type_index,
            gpus,
            nodes,
            now_s,
            power_w,
            trains_from_s + believed_s + self._end_latency_s,
            work,
            sample_s,
            step_work,
            trains_from_s,
            now_s,
        )
        if version:
            stretch.version = version
        if self._start_latency_s:
            self._promise(stretch, idle_w)
        else:
            self.ledger.power_w += power_w - idle_w
        if self._has_busy_hosts:
            self.ledger.add_host_w(self._hosts_w(nodes))
        self.use.start(self._user[job], gpus, now_s)
        self.log.pending.append((now_s, START, job, option))
        if self._neighbours is not None:
            self._disturb(now_s, self._neighbours.join(stretch, self.running))
        end_s = trains_from_s + work * sample_s
        if self._neighbours is not None or self._rules.pauses:
            end_s = stretch.end_s(self._rules)
        if self._has_latency:
            self._push_rest(end_s, job, version)
        else:
            heappush(self.heap, (end_s, END, job, version))
        return True

    def begin(self, now_s: float, stretch: JobSegment) -> None:
        """A job that was started some time ago begins to work."""
        stretch.settle(now_s, self._rules)
        power_w = self.choices[self.kind[stretch.job]][stretch.option].power_w
        self.ledger.power_w += power_w - stretch.power_w
        self.promised_w -= power_w - stretch.power_w
        stretch.power_w = power_w

    def rest(self, now_s: float, stretch: JobSegment) -> None:
        """A job's work is done; its GPUs idle until they can be given to another."""
        stretch.settle(now_s, self._rules)
        idle_w = stretch.gpus * self._idle_w[stretch.type_index]
        self.ledger.power_w += idle_w - stretch.power_w
        self.promised_w += stretch.power_w - idle_w
        stretch.power_w = idle_w
        stretch.rests = True

    def finish(self, now_s: float, stretch: JobSegment) -> None:
        """A job has done its work."""
        job = stretch.job
        if stretch.trains_from_s > stretch.started_s:
            self.accounts.wasted_j[job] += stretch.restart_at_j(now_s)
        if stretch.rests:
            power_w = self.choices[self.kind[job]][stretch.option].power_w
            self.promised_w -= power_w - stretch.power_w
        self._release(now_s, stretch)
        self.accounts.finished_s[job] = now_s - self._end_latency_s
        self.log.pending.append((now_s, FINISH, job, 0))

    def stop(self, now_s: float, stretch: JobSegment, what: EventKind) -> None:
        """A job is stopped before its end, and waits again."""
        job = stretch.job
        counts = self.accounts.preemptions
        if what is EventKind.INTERRUPT:
            counts = self.accounts.interruptions
        counts[job] += 1
        self.stopped_s = now_s
        self.accounts.wasted_j[job] += stretch.loss_at(now_s, self._rules).energy_j
        left = stretch.work_at_start - stretch.kept_at(now_s, self._rules)
        if now_s < stretch.works_from_s:
            power_w = self.choices[self.kind[job]][stretch.option].power_w
            self.promised_w -= power_w - stretch.power_w
        self._release(now_s, stretch)
        self._versions[job] = stretch.version + 1  # its end in the heap is void
        self.queue.add(job, left)
        self.log.add(now_s, what, job, stretch.option)

    def recap(self, now_s: float, stretch: JobSegment, option: int) -> None:
        """A job goes on under another power limit."""
        kind = self.kind[stretch.job]
        choice = self.choices[kind][option]
        stretch.settle(now_s, self._rules)
        if now_s < stretch.works_from_s:
            old_w = self.choices[kind][stretch.option].power_w
            self.promised_w += choice.power_w - old_w
        else:
            self.ledger.power_w += choice.power_w - stretch.power_w
            stretch.power_w = choice.power_w
        stretch.option = option
        stretch.sample_s = choice.sample_s
        believed_s = choice.believed_sample_s * self._share(stretch.job, kind, option)
        left_s = (stretch.end_s(self._rules) - now_s) * believed_s
        stretch.expected_end_s = now_s + (left_s / choice.sample_s if choice.sample_s else 0.0)
        self.log.add(now_s, EventKind.RECAP, stretch.job, option)
        self._move_end(stretch)

    def move_node(self, now_s: float, node: int, *, is_up: bool) -> bool:
        """A node dies, or is back; False when it already was."""
        if self.machines.is_up[node] == is_up:
            return False
        if is_up:
            self.outages.end(now_s, node)
        else:
            for job in self._neighbours.on(node) if self._neighbours is not None else ():
                stretch = self.running[job]
                if stretch.rests:
                    self.finish(now_s, stretch)
                else:
                    self.stop(now_s, stretch, EventKind.INTERRUPT)
            self.outages.begin(now_s, node)
        self.log.add(now_s, EventKind.NODE_UP if is_up else EventKind.NODE_DOWN, -1, node)
        return True

    def loss(self, running: RunningJob) -> PreemptionLoss:
        """What stopping a running job now would throw away."""
        return self.running[running.job].loss_at(self.ledger.now_s, self._rules)

    def _release(self, now_s: float, stretch: JobSegment) -> None:
        """A job leaves its machines."""
        job, gpus, type_index = stretch.job, stretch.gpus, stretch.type_index
        running, ledger, accounts = self.running, self.ledger, self.accounts
        del running[job]
        self.machines.give(stretch.nodes)
        if self._has_busy_hosts:
            ledger.add_host_w(-self._hosts_w(stretch.nodes))
        if running:
            ledger.power_w += gpus * self._idle_w[type_index] - stretch.power_w
        else:
            ledger.power_w = ledger.resting_w  # rounding does not pile up
            self.promised_w = 0.0
        self.use.stop(self._user[job], gpus, now_s)
        gpu_s = gpus * (now_s - stretch.started_s)
        accounts.energy_j[job] += stretch.energy_j + stretch.power_w * (now_s - stretch.since_s)
        accounts.gpu_s[job] += gpu_s
        accounts.busy_gpu_s[type_index] += gpu_s
        if self._neighbours is not None:
            self._disturb(now_s, self._neighbours.leave(stretch, running))

    def _disturb(self, now_s: float, slowdowns: list[tuple[JobSegment, float]]) -> None:
        """Neighbours of a job that came or went change their speed."""
        for stretch, slowdown in slowdowns:
            if stretch.rests:
                continue
            stretch.settle(now_s, self._rules)
            stretch.slowdown = slowdown
            self._move_end(stretch)

    def _share(self, job: int, kind: int, option: int) -> float:
        """The time this very job is believed to take, over that of its kind."""
        factors = self.oracle.factors(job, self.jobs.kinds[kind])
        return 1.0 if factors is None else float(factors.time[option])

    def _move_end(self, stretch: JobSegment) -> None:
        stretch.version += 1
        end_s = stretch.end_s(self._rules)
        if self._has_latency:
            self._push_rest(end_s, stretch.job, stretch.version)
        else:
            heappush(self.heap, (end_s, END, stretch.job, stretch.version))

    def _promise(self, stretch: JobSegment, idle_w: float) -> None:
        """A job has its GPUs, which idle until it works."""
        self.promised_w += stretch.power_w - idle_w
        stretch.power_w = idle_w
        stretch.works_from_s = begin_s = stretch.started_s + self._start_latency_s
        heappush(self.heap, (begin_s, BEGIN, stretch.job, stretch.version))

    def _push_rest(self, end_s: float, job: int, version: int) -> None:
        """When a job's work is done, and when its GPUs are free."""
        if self._end_latency_s:
            heappush(self.heap, (end_s, REST, job, version))
        heappush(self.heap, (end_s + self._end_latency_s, END, job, version))

    def _hosts_w(self, nodes: Nodes) -> float:
        return sum(mask.bit_count() * self._host_busy_w[node] for node, mask in nodes)
