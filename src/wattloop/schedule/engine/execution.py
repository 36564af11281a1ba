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
from wattloop.schedule.engine.sleep import Sleepers, WakeUp
from wattloop.schedule.estimates.oracle import Oracle, PlacementOptions, Shape
from wattloop.schedule.free_gpus import FreeGpus
from wattloop.schedule.jobs.kind import JobKind
from wattloop.schedule.jobs.table import JobTable
from wattloop.schedule.queue import JobQueue
from wattloop.schedule.view import JobAges, PreemptionLoss, RunningJob, UserUsage


class Accounts:
    """Columns over all jobs, in arrays: a million jobs take 50 MB.

    Attributes:
        started_s, finished_s: first start and end; NaN before.
        energy_j: energy of its GPUs during its allocations, up to its last stop.
        wasted_j: part of that energy for lost work and restarts.
        preemptions, interruptions: stops by the policy, and by failed nodes.
        resizes: moves to other GPUs or another batch.
        busy_gpu_s: allocated GPU seconds by GPU type.
        ended_age_s: summed completion times of finished jobs.
    """

    def __init__(self, jobs: int, types: int) -> None:
        self.started_s = array("d", [math.nan]) * jobs
        self.finished_s = array("d", [math.nan]) * jobs
        self.energy_j = array("d", [0.0]) * jobs
        self.wasted_j = array("d", [0.0]) * jobs
        self.gpu_s = array("d", [0.0]) * jobs
        self.preemptions = array("l", [0]) * jobs
        self.interruptions = array("l", [0]) * jobs
        self.resizes = array("l", [0]) * jobs
        self.busy_gpu_s = [0.0] * types
        self.ended_age_s = 0.0


class JobOption(NamedTuple):
    """Option of a job kind.

    Attributes:
        power_w, sample_s: true power of its GPUs, and true seconds per sample.
        estimated_sample_s: estimated seconds per sample, before factors of a single job.
        step_work: samples of one iteration.
        idle_w: power of its GPUs when idle.
    """

    shape: Shape
    power_w: float
    sample_s: float
    estimated_sample_s: float
    step_work: float
    idle_w: float


def job_options(kind: JobKind, truth: Oracle, oracle: Oracle, cluster: Cluster) -> list[JobOption]:
    """Return the options of a kind, by number.

    Raises:
        ConfigError: the oracles have different options, or a figure is invalid.
    """
    true, estimated = truth.options(kind), oracle.options(kind)
    if true is not estimated and not _have_same_options(true, estimated):
        raise ConfigError(
            f"oracles {truth.name!r} and {oracle.name!r} differ in the options of {kind.label}: "
            "a policy's choice must exist in both; give both the same cluster"
        )
    for name, column in (("sample_s", true.sample_s), ("power_w", true.power_w)):
        if not np.all(np.isfinite(column) & (column >= 0.0)):
            raise ConfigError(f"oracle {truth.name!r}: {name} of {kind.label} is negative or NaN")
    idle_w = np.array([each.idle_w for each in cluster.types])
    columns = (
        true.shapes(),
        true.power_w.tolist(),
        true.sample_s.tolist(),
        estimated.sample_s.tolist(),
        true.samples.tolist(),
        (idle_w[true.type_index] * true.gpus).tolist(),
    )
    return [JobOption._make(row) for row in zip(*columns, strict=True)]


def _have_same_options(one: PlacementOptions, other: PlacementOptions) -> bool:
    return (
        one.shapes() == other.shapes()
        and np.array_equal(one.batch, other.batch)
        and np.allclose(one.cap_w, other.cap_w)
    )


class Outages:
    """Removal of failed nodes from machines and ledger, and their return.

    Attributes:
        since_s: node that is down -> time of its failure.
    """

    def __init__(self, cluster: Cluster, machines: Machines, ledger: PowerLedger) -> None:
        self._cluster, self._machines, self._ledger = cluster, machines, ledger
        self._ended_gpu_s = [0.0] * len(cluster.types)
        self.since_s: dict[int, float] = {}

    def begin(self, now_s: float, node: int) -> None:
        """Take a node down; nothing runs on it any more."""
        self._machines.set_down(node)
        self.since_s[node] = now_s
        host_w, gpus_w = self._idle_w(node)
        self._ledger.add_node_w(-host_w, -gpus_w)

    def end(self, now_s: float, node: int) -> None:
        machines = self._machines
        machines.set_up(node)
        away_s = now_s - self.since_s.pop(node)
        self._ended_gpu_s[machines.node_type[node]] += machines.sizes[node] * away_s
        self._ledger.add_node_w(*self._idle_w(node))

    def gpu_s(self, now_s: float) -> list[float]:
        """Return the GPU seconds of outages by GPU type."""
        machines, found = self._machines, self._ended_gpu_s.copy()
        for node, since_s in self.since_s.items():
            found[machines.node_type[node]] += machines.sizes[node] * (now_s - since_s)
        return found

    def _idle_w(self, node: int) -> tuple[float, float]:
        """Return the idle power of a node's host, and of its GPUs."""
        group = self._cluster.node_groups[node]
        idle_w = self._cluster.types[self._machines.node_type[node]].idle_w
        return group.host_w, group.gpus_per_node * idle_w


Entry = tuple[float, int, int, int]
"""Future event: time, kind, job or node, version."""
END = 0
WORK_BEGIN, WORK_END = 5, 6
"""Begin and end of a job's work, while it holds GPUs that idle before and after."""
START, FINISH = int(EventKind.START), int(EventKind.FINISH)


class Execution:
    """True state of a simulated cluster; all changes go through this class.

    Args:
        jobs: all jobs, including future ones.
        truth: oracle of true time and power.
        oracle: oracle of the policy's estimates.
        settings: settings of the simulation.
        sleeps: idle GPUs and nodes use their power-down states.
        isolates: jobs get the nodes with the fewest other jobs.
    """

    def __init__(
        self,
        cluster: Cluster,
        jobs: JobTable,
        truth: Oracle,
        oracle: Oracle,
        settings: EngineSettings,
        *,
        sleeps: bool = False,
        isolates: bool = False,
    ) -> None:
        self.cluster, self.jobs, self.settings = cluster, jobs, settings
        self.oracle = oracle
        self.choices = [job_options(kind, truth, oracle, cluster) for kind in jobs.kinds]
        self.machines = Machines(cluster, emptiest=isolates)
        self.ledger = PowerLedger(cluster, settings)
        self.outages = Outages(cluster, self.machines, self.ledger)
        self.log = EventLog()
        self.use = UserUsage(len(jobs.users))
        self.accounts = Accounts(len(jobs), len(cluster.types))
        self.queue = JobQueue(jobs, oracle, [each.idle_w for each in cluster.types])
        self.running: dict[int, JobSegment] = {}
        self.heap: list[Entry] = []
        self.sleepers: Sleepers | None = None
        if sleeps:
            self.sleepers = Sleepers(cluster, self.machines, self.ledger, self.heap)
            self.machines.order = self.sleepers
        self._versions: dict[int, int] = {}
        self.kind = self.queue.kind_of
        self._user: list[int] = jobs.user.tolist()
        self._arrival_s: list[float] = jobs.arrival_s.tolist()
        self._rules = settings.preemption
        self.expected_w = 0.0
        """Estimated power in addition to the true power: of started jobs that do not work yet, and
        of ended jobs that the scheduler still takes for running.
        """
        self.stopped_s = 0.0
        self.present_since_s = 0.0
        """Summed arrival times of the jobs that wait or run."""
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
        """Start a waiting job; return False, with nothing changed, if its GPUs are not free."""
        nodes = self.machines.take_if_free(self.choices[self.kind[job]][option].shape)
        if nodes is None:
            return False
        work = self.queue.remove(job)
        started_s = self.accounts.started_s
        restart_s, version = 0.0, 0
        if started_s[job] == started_s[job]:  # not NaN: it has started before
            restart_s = self._rules.restart_s
            version = self._versions.pop(job)
        else:
            started_s[job] = now_s
        self.log.pending.append((now_s, START, job, option))
        self._begin(now_s, job, option, nodes, work, restart_s, version)
        return True

    def resize(self, now_s: float, segment: JobSegment, option: int) -> bool:
        """Continue a job on other GPUs; return False, with nothing changed, if none are free."""
        job, resize_s = segment.job, self._rules.resize_s
        assert resize_s is not None  # `Decisions` has refused it
        if not self._fits_instead(segment, self.choices[self.kind[job]][option].shape):
            return False
        kept = segment.whole_steps_at(now_s, self._rules)
        self.accounts.wasted_j[job] += segment.loss_at(now_s, self._rules, kept).energy_j
        self.accounts.resizes[job] += 1
        if now_s < segment.works_from_s:
            power_w = self.choices[self.kind[job]][segment.option].power_w
            self.expected_w -= power_w - segment.power_w
        self._release(now_s, segment)
        nodes = self.machines.take(self.choices[self.kind[job]][option].shape)
        self.log.add(now_s, EventKind.RESIZE, job, option)
        left = segment.work_at_start - kept
        self._begin(now_s, job, option, nodes, left, resize_s, segment.version + 1)
        return True

    def _fits_instead(self, segment: JobSegment, shape: Shape) -> bool:
        """Return True if a shape is free once a job has left its GPUs."""
        machines = self.machines
        plan = FreeGpus([[len(nodes) for nodes in each] for each in machines.nodes_with])
        for node, mask in segment.nodes:
            free = machines.free_mask[node].bit_count()
            plan.give(segment.type_index, mask.bit_count(), free)
        return plan.fits(shape)

    def _begin(
        self,
        now_s: float,
        job: int,
        option: int,
        nodes: Nodes,
        work: float,
        restart_s: float,
        version: int,
    ) -> None:
        """Run a job on GPUs that were taken for it."""
        kind = self.kind[job]
        shape, power_w, sample_s, estimated_s, step_work, idle_w = self.choices[kind][option]
        trains_from_s = now_s + self._start_latency_s + restart_s
        wake = None if self.sleepers is None else self.sleepers.take(now_s, nodes)
        if wake is not None:
            trains_from_s += wake.time_s
        if self._has_factors:
            estimated_s *= self._share(job, kind, option)
        estimated_s *= work
        if self._rules.pauses:
            estimated_s = self._rules.elapsed_s(estimated_s)
        type_index, gpus, _ = shape
        self.running[job] = segment = JobSegment(
            job,
            option,
            type_index,
            gpus,
            nodes,
            now_s,
            power_w,
            trains_from_s + estimated_s + self._end_latency_s,
            work,
            sample_s,
            step_work,
            trains_from_s,
            now_s,
        )
        if version:
            segment.version = version
        if self._start_latency_s or wake is not None:
            self._delay_work(segment, idle_w, wake)
        else:
            self.ledger.power_w += power_w - idle_w
        if self._has_busy_hosts:
            self.ledger.add_host_w(self._hosts_w(nodes))
        self.use.start(self._user[job], gpus, now_s)
        if self._neighbours is not None:
            self._change_speeds(now_s, self._neighbours.join(segment, self.running))
        end_s = trains_from_s + work * sample_s
        if self._neighbours is not None or self._rules.pauses:
            end_s = segment.end_s(self._rules)
        if self._has_latency:
            self._push_end(end_s, job, version)
        else:
            heappush(self.heap, (end_s, END, job, version))

    def begin_work(self, now_s: float, segment: JobSegment) -> None:
        """Begin the work of a job after its start latency."""
        segment.update(now_s, self._rules)
        power_w = self.choices[self.kind[segment.job]][segment.option].power_w
        self.ledger.power_w += power_w - segment.power_w
        self.expected_w -= power_w - segment.power_w
        segment.power_w = power_w

    def end_work(self, now_s: float, segment: JobSegment) -> None:
        """End the work of a job; its GPUs idle until they are freed."""
        segment.update(now_s, self._rules)
        idle_w = segment.gpus * self._idle_w[segment.type_index]
        self.ledger.power_w += idle_w - segment.power_w
        self.expected_w += segment.power_w - idle_w
        segment.power_w = idle_w
        segment.is_ending = True

    def finish(self, now_s: float, segment: JobSegment) -> None:
        """Free the GPUs of a job that has done its work."""
        job = segment.job
        if segment.trains_from_s > segment.started_s:
            self.accounts.wasted_j[job] += segment.restart_at_j(now_s)
        if segment.is_ending:
            power_w = self.choices[self.kind[job]][segment.option].power_w
            self.expected_w -= power_w - segment.power_w
        self._release(now_s, segment)
        self.accounts.finished_s[job] = now_s - self._end_latency_s
        self.accounts.ended_age_s += now_s - self._arrival_s[job]
        self.present_since_s -= self._arrival_s[job]
        self.log.pending.append((now_s, FINISH, job, 0))

    def stop(self, now_s: float, segment: JobSegment, what: EventKind) -> None:
        """Stop a job before its end, and put it back into the queue."""
        job = segment.job
        counts = self.accounts.preemptions
        if what is EventKind.INTERRUPT:
            counts = self.accounts.interruptions
        counts[job] += 1
        self.stopped_s = now_s
        self.accounts.wasted_j[job] += segment.loss_at(now_s, self._rules).energy_j
        left = segment.work_at_start - segment.kept_at(now_s, self._rules)
        if now_s < segment.works_from_s:
            power_w = self.choices[self.kind[job]][segment.option].power_w
            self.expected_w -= power_w - segment.power_w
        self._release(now_s, segment)
        self._versions[job] = segment.version + 1  # voids its end in the heap
        self.queue.add(job, left)
        self.log.add(now_s, what, job, segment.option)

    def recap(self, now_s: float, segment: JobSegment, option: int) -> None:
        """Continue a job under another power cap."""
        kind = self.kind[segment.job]
        choice = self.choices[kind][option]
        segment.update(now_s, self._rules)
        if now_s < segment.works_from_s:
            old_w = self.choices[kind][segment.option].power_w
            self.expected_w += choice.power_w - old_w
        else:
            self.ledger.power_w += choice.power_w - segment.power_w
            segment.power_w = choice.power_w
        segment.option = option
        segment.sample_s = choice.sample_s
        estimated_s = choice.estimated_sample_s * self._share(segment.job, kind, option)
        left_s = (segment.end_s(self._rules) - now_s) * estimated_s
        segment.expected_end_s = now_s + (left_s / choice.sample_s if choice.sample_s else 0.0)
        self.log.add(now_s, EventKind.RECAP, segment.job, option)
        self._move_end(segment)

    def move_node(self, now_s: float, node: int, *, is_up: bool) -> bool:
        """Take a node down or up; return False if it already was."""
        if self.machines.is_up[node] == is_up:
            return False
        if is_up:
            self.outages.end(now_s, node)
            if self.sleepers is not None:
                self.sleepers.move_node(now_s, node, is_up=True)
        else:
            for job in self._neighbours.on(node) if self._neighbours is not None else ():
                segment = self.running[job]
                if segment.is_ending:
                    self.finish(now_s, segment)
                    self.accounts.finished_s[job] = segment.since_s  # the end of its work
                else:
                    self.stop(now_s, segment, EventKind.INTERRUPT)
            if self.sleepers is not None:
                self.sleepers.move_node(now_s, node, is_up=False)
            self.outages.begin(now_s, node)
        self.log.add(now_s, EventKind.NODE_UP if is_up else EventKind.NODE_DOWN, -1, node)
        return True

    def ages(self, now_s: float) -> JobAges:
        """Return the ages of all jobs that have arrived."""
        present = len(self.running) + len(self.queue.waiting)
        age_s = present * now_s - self.present_since_s
        return JobAges(present, self.accounts.ended_age_s + age_s)

    def loss(self, running: RunningJob) -> PreemptionLoss:
        """Return the loss of stopping a running job now."""
        return self.running[running.job].loss_at(self.ledger.now_s, self._rules)

    def _release(self, now_s: float, segment: JobSegment) -> None:
        job, gpus, type_index = segment.job, segment.gpus, segment.type_index
        running, ledger, accounts = self.running, self.ledger, self.accounts
        del running[job]
        self.machines.give(segment.nodes)
        if self.sleepers is not None:
            self.sleepers.give(now_s, segment.nodes)
        if self._has_busy_hosts:
            ledger.add_host_w(-self._hosts_w(segment.nodes))
        if running:
            ledger.power_w += gpus * self._idle_w[type_index] - segment.power_w
        else:
            ledger.power_w = ledger.resting_w  # rounding errors do not accumulate
            self.expected_w = 0.0
        self.use.stop(self._user[job], gpus, now_s)
        gpu_s = gpus * (now_s - segment.started_s)
        accounts.energy_j[job] += segment.energy_j + segment.power_w * (now_s - segment.since_s)
        accounts.gpu_s[job] += gpu_s
        accounts.busy_gpu_s[type_index] += gpu_s
        if self._neighbours is not None:
            self._change_speeds(now_s, self._neighbours.leave(segment, running))

    def _change_speeds(self, now_s: float, slowdowns: list[tuple[JobSegment, float]]) -> None:
        """Change the speed of jobs whose neighbour came or left."""
        for segment, slowdown in slowdowns:
            if segment.is_ending:
                continue
            segment.update(now_s, self._rules)
            segment.slowdown = slowdown
            self._move_end(segment)

    def _share(self, job: int, kind: int, option: int) -> float:
        """Return the estimated time of this job relative to that of its kind."""
        factors = self.oracle.factors(job, self.jobs.kinds[kind])
        return 1.0 if factors is None else float(factors.time[option])

    def _move_end(self, segment: JobSegment) -> None:
        segment.version += 1
        end_s = segment.end_s(self._rules)
        if self._has_latency:
            self._push_end(end_s, segment.job, segment.version)
        else:
            heappush(self.heap, (end_s, END, segment.job, segment.version))

    def _delay_work(self, segment: JobSegment, idle_w: float, wake: WakeUp | None) -> None:
        """Allocate GPUs that wake up, and idle, until the job works."""
        delay_s, waiting_w = self._start_latency_s, idle_w
        if wake is not None:
            waiting_w = (idle_w * delay_s + wake.power_w * wake.time_s) / (delay_s + wake.time_s)
            delay_s += wake.time_s
            segment.waiting_w = waiting_w
        self.expected_w += segment.power_w - waiting_w
        self.ledger.power_w += waiting_w - idle_w
        segment.power_w = waiting_w
        segment.works_from_s = begin_s = segment.started_s + delay_s
        heappush(self.heap, (begin_s, WORK_BEGIN, segment.job, segment.version))

    def _push_end(self, end_s: float, job: int, version: int) -> None:
        """Schedule the end of the work, and the release of the GPUs."""
        if self._end_latency_s:
            heappush(self.heap, (end_s, WORK_END, job, version))
        heappush(self.heap, (end_s + self._end_latency_s, END, job, version))

    def _hosts_w(self, nodes: Nodes) -> float:
        return sum(mask.bit_count() * self._host_busy_w[node] for node, mask in nodes)
