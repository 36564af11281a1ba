"""A cluster in time: a heap of events, and a policy that is asked after each."""

import heapq
import math
import time
from typing import NamedTuple

import numpy as np

from wattloop.schedule.actions import Action, Preempt, Recap, Start, Wake
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.engine.ledger import Ledger
from wattloop.schedule.engine.log import EventLog, What
from wattloop.schedule.engine.machines import Machines
from wattloop.schedule.engine.result import Result
from wattloop.schedule.engine.runnable import why_never
from wattloop.schedule.engine.settings import Keeps, Settings
from wattloop.schedule.engine.stretch import Stretch
from wattloop.schedule.jobs.table import JobTable, uncapped
from wattloop.schedule.oracle.oracle import Oracle
from wattloop.schedule.policies.policy import Policy
from wattloop.schedule.queue import Queue
from wattloop.schedule.running import Running
from wattloop.schedule.use import Use
from wattloop.schedule.view import ClusterView, Loss

__all__ = ["Simulation"]

# Order of what happens at one moment: ends first, so that their machines are free for the rest.
END, NODE, TURN, WAKE, ROUND = range(5)
REFUSALS_KEPT = 100
ROUNDS_AT_ONCE = 100_000


class _True(NamedTuple):
    """What jobs of one kind truly take, as plain lists: quicker to look up than arrays."""

    sample_s: list[float]
    power_w: list[float]
    step_work: list[float]
    shapes: list[tuple[int, int, bool]]


class Simulation:
    """One policy on one cluster with one table of jobs.

    Args:
        cluster: the machines.
        jobs: who comes when.
        policy: who decides.
        truth: time and power as they turn out.
        oracle: what the policy is told of them; the truth when not given.
        settings: rules of this world.
    """

    def __init__(
        self,
        cluster: Cluster,
        jobs: JobTable,
        policy: Policy,
        *,
        truth: Oracle,
        oracle: Oracle | None = None,
        settings: Settings | None = None,
    ) -> None:
        if not policy.sets_caps:
            jobs = uncapped(jobs)
        self.cluster, self.jobs, self.policy = cluster, jobs, policy
        self.settings = settings or Settings()
        self.oracle = oracle or truth
        self._true = [_true(truth, kind) for kind in jobs.kinds]
        self.machines = Machines(cluster)
        self.ledger = Ledger(cluster, self.settings)
        self.log = EventLog()
        self.use = Use(len(jobs.users))
        self.running: dict[int, Stretch] = {}
        self.queue = Queue(jobs, self.oracle, [each.idle_w for each in cluster.types])
        self._preemptions = [0] * len(jobs)
        self.view = ClusterView(
            cluster=cluster,
            jobs=jobs,
            queue=self.queue,
            free=self.machines.free,
            running=self.running,
            use=self.use,
            budget_w=self.settings.budget_w,
            power_error=self.oracle.power_error,
            time_error=self.oracle.time_error,
            loss=self._loss,
            preemptions=self._preemptions,
            is_up=self.machines.is_up,
            carbon_g_per_kwh=self.settings.carbon_g_per_kwh,
            price_per_kwh=self.settings.price_per_kwh,
        )
        self._why_never = [why_never(kind, truth.options(kind), cluster) for kind in jobs.kinds]
        self._kind: list[int] = jobs.kind.tolist()
        self._user: list[int] = jobs.user.tolist()
        self._arrival_s: list[float] = jobs.arrival_s.tolist()
        self._arrived = 0
        self._started_s = [math.nan] * len(jobs)
        self._finished_s = [math.nan] * len(jobs)
        self._energy_j = [0.0] * len(jobs)
        self._wasted_j = [0.0] * len(jobs)
        self._gpu_s = [0.0] * len(jobs)
        self._interruptions = [0] * len(jobs)
        self._busy_gpu_s = [0.0] * len(cluster.types)
        self._down_gpu_s = [0.0] * len(cluster.types)
        self._down_since_s: dict[int, float] = {}
        self._on_node: list[set[int]] | None = None
        if self.settings.interference or self.settings.node_events:
            self._on_node = [set() for _ in cluster.node_groups]
        self._never: dict[int, str] = {}
        self._refused: list[str] = []
        self._refusals = 0
        self._heap: list[tuple[float, int, int, int, int]] = []
        self._count = 0
        self._round_at_s = -math.inf
        self._idle_w = [each.idle_w for each in cluster.types]
        self._host_busy_w = [group.host_busy_w_per_gpu for group in cluster.node_groups]
        self._has_busy_hosts = any(self._host_busy_w)
        self._wall_s = self._policy_s = 0.0
        keeps = self.settings.preemption.keeps is Keeps.CHECKPOINTS
        pause = self.settings.preemption
        self._own_slowdown = (
            1.0 + pause.checkpoint_cost_s / pause.checkpoint_period_s if keeps else 1.0
        )
        for event in self.settings.node_events:
            self._push(event.time_s, NODE, event.node, int(event.is_up))
        self._push_turn(0.0)

    def run(self, until_s: float = math.inf) -> Result:
        """Go on until all is done, the horizon is reached, or `until_s`."""
        begun_s = time.perf_counter()
        self._go_on(min(until_s, self.settings.horizon_s))
        self._wall_s += time.perf_counter() - begun_s
        return self.result()

    def result(self) -> Result:
        """What there is so far."""
        now_s = self.ledger.now_s
        for stretch in self.running.values():
            stretch.settle(now_s, self.settings.preemption)
        energy_j, gpu_s = self._energy_j.copy(), self._gpu_s.copy()
        busy_gpu_s, down_gpu_s = self._busy_gpu_s.copy(), self._down_gpu_s.copy()
        for job, stretch in self.running.items():
            energy_j[job] += stretch.energy_j
            gpu_s[job] += stretch.gpus * (now_s - stretch.started_s)
            busy_gpu_s[stretch.type_index] += stretch.gpus * (now_s - stretch.started_s)
        for node, since_s in self._down_since_s.items():
            gpus = self.cluster.node_groups[node].gpus_per_node
            down_gpu_s[self.machines.node_type[node]] += gpus * (now_s - since_s)
        ledger, settings = self.ledger, self.settings
        return Result(
            policy=self.policy.name,
            cluster=self.cluster,
            jobs=self.jobs,
            end_s=now_s,
            started_s=np.array(self._started_s),
            finished_s=np.array(self._finished_s),
            energy_j=np.array(energy_j),
            wasted_j=np.array(self._wasted_j),
            gpu_s=np.array(gpu_s),
            preemptions=np.array(self._preemptions, dtype=np.int64),
            interruptions=np.array(self._interruptions, dtype=np.int64),
            active_j=ledger.active_j,
            idle_j=ledger.idle_j,
            host_j=ledger.host_j,
            network_j=ledger.network_j,
            carbon_g=None if settings.carbon_g_per_kwh is None else ledger.carbon_g,
            cost=None if settings.price_per_kwh is None else ledger.cost,
            peak_w=ledger.peak_w,
            over_budget_s=ledger.over_budget_s,
            over_budget_j=ledger.over_budget_j,
            budget_w=settings.budget_w,
            power_times_s=np.array(ledger.times_s),
            power_w=np.array(ledger.powers_w),
            busy_gpu_s=tuple(busy_gpu_s),
            down_gpu_s=tuple(down_gpu_s),
            never=dict(self._never),
            refused=tuple(self._refused),
            refusals=self._refusals,
            log=self.log,
            wall_s=self._wall_s,
            policy_s=self._policy_s,
        )

    def _go_on(self, until_s: float) -> None:
        heap, arrivals_s, ledger = self._heap, self._arrival_s, self.ledger
        jobs = len(arrivals_s)
        while True:
            next_s = arrivals_s[self._arrived] if self._arrived < jobs else math.inf
            if heap and heap[0][0] <= next_s:
                next_s = heap[0][0]
            if next_s > until_s or (next_s == math.inf) or self._is_over():
                break
            ledger.advance(next_s)
            is_round = False
            while heap and heap[0][0] <= next_s:
                is_round |= self._happen(*heapq.heappop(heap))
            while self._arrived < jobs and arrivals_s[self._arrived] <= next_s:
                self._arrive(next_s, self._arrived)
                self._arrived += 1
                is_round = True
            if is_round:
                self._decide(next_s)
        if until_s < math.inf and not self._is_over():
            ledger.advance(until_s)

    def _is_over(self) -> bool:
        """Nobody runs, waits or is to come: events of nodes and prices alone do not matter."""
        if self.settings.horizon_s < math.inf:
            return False
        return self._arrived == len(self.jobs) and not self.running and not len(self.queue)

    def _happen(self, time_s: float, what: int, _: int, about: int, version: int) -> bool:
        """Something happens; whether the policy is to be asked."""
        if what == END:
            stretch = self.running.get(about)
            if stretch is None or stretch.version != version:
                return False
            self._finish(time_s, stretch)
            return True
        if what == NODE:
            self._node(time_s, about, is_up=bool(version))
            return True
        if what == TURN:
            self.ledger.turn(time_s)
            self._push_turn(time_s)
            return True
        if what == ROUND:
            self._round_at_s = -math.inf
            self._ask(time_s)
            return False
        return True  # WAKE

    def _arrive(self, now_s: float, job: int) -> None:
        self.log.add(now_s, What.ARRIVE, job)
        why = self._why_never[self._kind[job]]
        if why:
            self._never[job] = why
        else:
            self.queue.add(job, float(self.jobs.work[job]))

    def _decide(self, now_s: float) -> None:
        """Ask the policy now, or at the next round."""
        if self.policy.needs_free_gpus and not (len(self.queue) and self.machines.free.total):
            return
        round_s = self.settings.round_s
        if round_s is None:
            for _ in range(ROUNDS_AT_ONCE):
                if not self._ask(now_s):
                    return
            self._refuse(now_s, -1, f"{self.policy.name} does not come to an end at {now_s:g} s")
        elif self._round_at_s < now_s:
            # The next multiple of the interval, now included: an event on a round is seen by it.
            at_s = math.ceil(now_s / round_s) * round_s
            if at_s == now_s:
                self._ask(now_s)
            else:
                self._round_at_s = at_s
                self._push(at_s, ROUND)

    def _ask(self, now_s: float) -> bool:
        """One round; whether another one may find more to do."""
        if self.policy.needs_free_gpus and not (len(self.queue) and self.machines.free.total):
            return False
        self.view.now_s = now_s
        self.view.power_w = self.ledger.power_w
        begun_s = time.perf_counter()
        actions = self.policy.decide(self.view)
        self._policy_s += time.perf_counter() - begun_s
        changed = False
        for action in actions:
            changed |= self._carry_out(now_s, action)
        if changed and self.settings.round_s is not None:
            self._round_at_s = now_s + self.settings.round_s
            self._push(self._round_at_s, ROUND)
        return changed

    def _carry_out(self, now_s: float, action: Action) -> bool:
        """Do what the policy wants, if it is possible; whether it changed anything."""
        if isinstance(action, Start):
            why = self._why_not_start(action)
            if not why:
                self._start(now_s, action.job, action.option)
        elif isinstance(action, Preempt):
            why = "" if action.job in self.running else f"job {action.job} does not run"
            if not why:
                self._stop(now_s, self.running[action.job], What.PREEMPT)
                self._preemptions[action.job] += 1
        elif isinstance(action, Recap):
            why = self._why_not_recap(action)
            if not why:
                self._recap(now_s, action)
        elif isinstance(action, Wake):
            why = "" if action.at_s > now_s else f"wakes at {action.at_s:g} s, which is over"
            if not why:
                self._push(action.at_s, WAKE)
                return False
        else:
            why = f"{action!r} is no action"
        if why:
            self._refuse(now_s, getattr(action, "job", -1), f"{self.policy.name}: {action}: {why}")
        return not why

    def _start(self, now_s: float, job: int, option: int) -> None:
        true = self._true[self._kind[job]]
        work = self.queue.work(job)
        self.queue.remove(job)
        shape = true.shapes[option]
        type_index, gpus, _ = shape
        nodes = self.machines.take(shape)
        power_w, sample_s = true.power_w[option], true.sample_s[option]
        is_again = self._started_s[job] == self._started_s[job]  # NaN is not itself
        trains_from_s = now_s + self.settings.preemption.restart_s if is_again else now_s
        expected_s = work * sample_s * self._believed_share(job, option)
        stretch = Stretch(
            job=job,
            option=option,
            type_index=type_index,
            gpus=gpus,
            nodes=nodes,
            started_s=now_s,
            power_w=power_w,
            expected_end_s=trains_from_s + expected_s * self._own_slowdown,
            work_at_start=work,
            user=self._user[job],
            sample_s=sample_s,
            step_work=true.step_work[option],
            trains_from_s=trains_from_s,
            slowdown=self._own_slowdown,
            since_s=now_s,
        )
        self.running[job] = stretch
        if not is_again:
            self._started_s[job] = now_s
        ledger = self.ledger
        ledger.active_w += power_w
        ledger.idle_w -= gpus * self._idle_w[type_index]
        if self._has_busy_hosts:
            ledger.host_w += self._hosts_w(nodes)
        self.use.start(stretch.user, gpus, now_s)
        self.log.add(now_s, What.START, job, option)
        if self._on_node is not None:
            for node, _ in nodes:
                self._on_node[node].add(job)
            self._disturb(now_s, stretch, itself=True)
        self._push(stretch.end_s(), END, job, stretch.version)

    def _believed_share(self, job: int, option: int) -> float:
        """The time a job is believed to take, over the time it takes."""
        factors = self.oracle.factors(job, self.jobs.kinds[self._kind[job]])
        return 1.0 if factors is None else float(factors.time[option])

    def _release(self, now_s: float, stretch: Stretch) -> None:
        """A job leaves its machines."""
        job, gpus = stretch.job, stretch.gpus
        del self.running[job]
        stretch.settle(now_s, self.settings.preemption)
        self.machines.give(stretch.nodes)
        ledger = self.ledger
        ledger.active_w = ledger.active_w - stretch.power_w if self.running else 0.0
        ledger.idle_w += gpus * self._idle_w[stretch.type_index]
        if self._has_busy_hosts:
            ledger.host_w -= self._hosts_w(stretch.nodes)
        self.use.stop(stretch.user, gpus, now_s)
        had_s = now_s - stretch.started_s
        self._energy_j[job] += stretch.energy_j
        self._gpu_s[job] += gpus * had_s
        self._busy_gpu_s[stretch.type_index] += gpus * had_s
        if self._on_node is not None:
            for node, _ in stretch.nodes:
                self._on_node[node].discard(job)
            self._disturb(now_s, stretch, itself=False)

    def _finish(self, now_s: float, stretch: Stretch) -> None:
        self._release(now_s, stretch)
        self._finished_s[stretch.job] = now_s
        self.log.add(now_s, What.FINISH, stretch.job)

    def _stop(self, now_s: float, stretch: Stretch, what: What) -> None:
        """A job is stopped before its end, and waits again."""
        preemption = self.settings.preemption
        kept = stretch.kept_at(now_s, preemption)
        self._wasted_j[stretch.job] += stretch.loss_at(now_s, preemption).energy_j
        self._release(now_s, stretch)
        left = stretch.work_at_start - kept
        self.queue.add(stretch.job, left)
        self.log.add(now_s, what, stretch.job, stretch.option)

    def _recap(self, now_s: float, action: Recap) -> None:
        stretch = self.running[action.job]
        true = self._true[self._kind[action.job]]
        stretch.settle(now_s, self.settings.preemption)
        self.ledger.active_w += true.power_w[action.option] - stretch.power_w
        stretch.power_w = true.power_w[action.option]
        stretch.sample_s = true.sample_s[action.option]
        stretch.option = action.option
        left_s = stretch.end_s() - now_s
        share = self._believed_share(action.job, action.option)
        stretch.expected_end_s = now_s + left_s * share
        self.log.add(now_s, What.RECAP, action.job, action.option)
        self._move_end(stretch)

    def _node(self, now_s: float, node: int, *, is_up: bool) -> None:
        """A node dies, or is back."""
        if self.machines.is_up[node] == is_up:
            return
        group = self.cluster.node_groups[node]
        type_index = self.machines.node_type[node]
        node_w = group.host_w, group.gpus_per_node * self._idle_w[type_index]
        if is_up:
            self.machines.put_up(node)
            since_s = self._down_since_s.pop(node)
            self._down_gpu_s[type_index] += group.gpus_per_node * (now_s - since_s)
            self.ledger.host_w += node_w[0]
            self.ledger.idle_w += node_w[1]
        else:
            for job in sorted(self._on_node[node] if self._on_node else ()):
                self._stop(now_s, self.running[job], What.INTERRUPT)
                self._interruptions[job] += 1
            self.machines.put_down(node)
            self._down_since_s[node] = now_s
            self.ledger.host_w -= node_w[0]
            self.ledger.idle_w -= node_w[1]
        self.log.add(now_s, What.NODE_UP if is_up else What.NODE_DOWN, -1, node)

    def _disturb(self, now_s: float, stretch: Stretch, *, itself: bool) -> None:
        """Jobs on the same nodes slow each other down."""
        if not self.settings.interference or self._on_node is None:
            return
        touched = {job for node, _ in stretch.nodes for job in self._on_node[node]}
        touched.discard(stretch.job)
        for job in sorted(touched):
            other = self.running[job]
            other.settle(now_s, self.settings.preemption)
            other.slowdown = self._own_slowdown * self._crowding(other)
            self._move_end(other)
        if itself:
            stretch.slowdown = self._own_slowdown * self._crowding(stretch)

    def _crowding(self, stretch: Stretch) -> float:
        """How much slower a job is for the company on its busiest node."""
        assert self._on_node is not None  # noqa: S101 - only asked where nodes are watched
        others = max(len(self._on_node[node]) for node, _ in stretch.nodes) - 1
        return 1.0 + self.settings.interference * others

    def _move_end(self, stretch: Stretch) -> None:
        stretch.version += 1
        self._push(stretch.end_s(), END, stretch.job, stretch.version)

    def _hosts_w(self, nodes: tuple[tuple[int, int], ...]) -> float:
        return sum(mask.bit_count() * self._host_busy_w[node] for node, mask in nodes)

    def _loss(self, running: Running) -> Loss:
        stretch = self.running[running.job]
        return stretch.loss_at(self.ledger.now_s, self.settings.preemption)

    def _why_not_start(self, action: Start) -> str:
        if action.job not in self.queue:
            return f"job {action.job} does not wait"
        shapes = self._true[self._kind[action.job]].shapes
        if not 0 <= action.option < len(shapes):
            return f"job {action.job} has {len(shapes)} options"
        type_index, gpus, _ = shapes[action.option]
        if not self.machines.free.fits(shapes[action.option]):
            free = self.machines.free.by_type[type_index]
            name = self.cluster.types[type_index].name
            return f"needs {gpus} {name} that can be had together, {free} are free"
        return ""

    def _why_not_recap(self, action: Recap) -> str:
        if action.job not in self.running:
            return f"job {action.job} does not run"
        true, now = self._true[self._kind[action.job]], self.running[action.job].option
        if not 0 <= action.option < len(true.shapes):
            return f"job {action.job} has {len(true.shapes)} options"
        same = true.shapes[action.option] == true.shapes[now]
        if not (same and true.step_work[action.option] == true.step_work[now]):
            return f"option {action.option} differs from option {now} by more than its cap"
        return ""

    def _refuse(self, now_s: float, job: int, why: str) -> None:
        self._refusals += 1
        self.log.add(now_s, What.REFUSE, job)
        if len(self._refused) < REFUSALS_KEPT:
            self._refused.append(f"at {now_s:g} s: {why}")

    def _push(self, time_s: float, what: int, about: int = 0, version: int = 0) -> None:
        self._count += 1
        heapq.heappush(self._heap, (time_s, what, self._count, about, version))

    def _push_turn(self, now_s: float) -> None:
        settings = self.settings
        steps = (settings.budget_w, settings.carbon_g_per_kwh, settings.price_per_kwh)
        next_s = min(each.next_change_s(now_s) for each in steps if each is not None)
        if next_s < math.inf:
            self._push(next_s, TURN)


def _true(truth: Oracle, kind: object) -> _True:
    options = truth.options(kind)  # type: ignore[arg-type] # a JobKind
    return _True(
        options.sample_s.tolist(),
        options.power_w.tolist(),
        (options.batch * options.gpus).astype(float).tolist(),
        options.shapes(),
    )
