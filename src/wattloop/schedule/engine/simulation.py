"""Event loop of the simulator: a heap of events, and a policy that is asked after each."""

import gc
import hashlib
import math
import pickle
import time
from array import array
from dataclasses import replace
from heapq import heappop, heappush
from pathlib import Path

import numpy as np

from wattloop.core.errors import ConfigError
from wattloop.core.files import atomic_write
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.engine.decisions import WAKE, Decisions
from wattloop.schedule.engine.event_log import EventKind
from wattloop.schedule.engine.execution import END, WORK_BEGIN, WORK_END, Execution
from wattloop.schedule.engine.invariants import Invariants
from wattloop.schedule.engine.machines import why_never
from wattloop.schedule.engine.result import SimulationEnd, SimulationResult
from wattloop.schedule.engine.settings import EngineSettings
from wattloop.schedule.engine.sleep import SLEEP
from wattloop.schedule.estimates.oracle import Oracle
from wattloop.schedule.jobs.table import JobTable, remove_caps
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.policies.power_budget import Headroom
from wattloop.schedule.step_function import StepFunction
from wattloop.schedule.view import ClusterView, RealisedDelay

MAGIC = b"wattloop simulation 7\n"
DIGEST_BYTES = hashlib.sha256().digest_size
# Order of events at the same time: ends of jobs first (0), so that their GPUs are free for the
# others; then changes of nodes and rates, arrivals, and last the policy.
NODE, RATES, ROUND = 1, 2, 4
ARRIVE = int(EventKind.ARRIVE)
COLLECT_AFTER = 50_000
DELAY_PERIOD_S = 60.0
"""Time between two computations of the realised delay."""
MOST_IDLE_EVENTS = 10_000
"""Most wakes of a policy with nothing running and no job to come."""


class Simulation:
    """One policy on one cluster with one table of jobs.

    Args:
        truth: oracle of true time and power.
        oracle: oracle of the policy's estimates; by default the truth.
    """

    def __init__(
        self,
        cluster: Cluster,
        jobs: JobTable,
        policy: Policy,
        *,
        truth: Oracle,
        oracle: Oracle | None = None,
        settings: EngineSettings | None = None,
    ) -> None:
        if not policy.sets_caps:
            jobs = remove_caps(jobs)
        self.settings = settings or EngineSettings()
        _check_input(cluster, jobs, self.settings)
        if policy.sleeps and not cluster.can_sleep:
            raise ConfigError(
                f"policy {policy.name}: cluster {cluster.name} has no power-down states; give its "
                "groups gpu_sleep or node_sleep (docs/clusters.md)"
            )
        world = Execution(
            cluster,
            jobs,
            truth,
            oracle or truth,
            self.settings,
            sleeps=policy.sleeps,
            isolates=policy.isolates,
        )
        self.world = world
        rules, estimates = replace(self.settings, checks=False, strict=False), oracle or truth
        self._references = [
            Simulation(cluster, jobs, each, truth=estimates, settings=rules)
            for each in policy.references()
        ]
        self._delay: RealisedDelay | None = None
        self._delay_s = -math.inf
        delay = self._realised_delay if self._references else None
        self.decisions = Decisions(policy, self.world, delay)
        self._invariants = Invariants(self.world) if self.settings.checks else None
        kinds = enumerate(jobs.kinds)
        why = {kind: why_never(each, truth.options(each), cluster) for kind, each in kinds}
        self._why_never = {kind: reason for kind, reason in why.items() if reason}
        self.never: dict[int, str] = {}
        self._arrival_s = array("d", [*jobs.arrival_s.tolist(), math.inf])
        self._work = array("d", jobs.work.astype(float).tobytes())
        self.arrived = 0
        self.ended = SimulationEnd.NOT_YET
        self.wall_s = 0.0
        self._idle_events = 0
        self._last_news_s = 0.0
        self._next_round = self._last_round = -1
        self._nodes_to_come = len(self.settings.node_events)
        for event in self.settings.node_events:
            heappush(self.world.heap, (event.time_s, NODE, event.node, int(event.is_up)))
        self._push_rate_change(0.0)

    @property
    def view(self) -> ClusterView:
        return self.decisions.view

    def run(self, until_s: float = math.inf) -> SimulationResult:
        """Run until all jobs are done, the horizon is reached, or `until_s`."""
        started_at_s, thresholds = time.perf_counter(), gc.get_threshold()
        # The engine creates no cycles: collecting every 700 objects takes a tenth of the time.
        gc.set_threshold(COLLECT_AFTER, *thresholds[1:])
        try:
            self._loop(min(until_s, self.settings.horizon_s))
        finally:
            gc.set_threshold(*thresholds)
        self.wall_s += time.perf_counter() - started_at_s
        return self.result()

    def result(self) -> SimulationResult:
        """Return the result up to now."""
        world, decisions = self.world, self.decisions
        ledger, accounts, now_s = world.ledger, world.accounts, world.ledger.now_s
        energy_j, gpu_s = np.array(accounts.energy_j), np.array(accounts.gpu_s)
        busy_gpu_s = accounts.busy_gpu_s.copy()
        for job, segment in world.running.items():
            had_gpu_s = segment.gpus * (now_s - segment.started_s)
            energy_j[job] += segment.energy_at_j(now_s)
            gpu_s[job] += had_gpu_s
            busy_gpu_s[segment.type_index] += had_gpu_s
        active_j = float(energy_j.sum())
        return SimulationResult(
            policy=decisions.policy.name,
            cluster=world.cluster,
            jobs=world.jobs,
            end_s=now_s,
            started_s=np.array(accounts.started_s),
            finished_s=np.array(accounts.finished_s),
            energy_j=energy_j,
            wasted_j=np.array(accounts.wasted_j),
            gpu_s=gpu_s,
            preemptions=np.array(accounts.preemptions, dtype=np.int64),
            interruptions=np.array(accounts.interruptions, dtype=np.int64),
            resizes=np.array(accounts.resizes, dtype=np.int64),
            active_j=active_j,
            idle_j=ledger.idle_j(active_j),
            host_j=ledger.host_j,
            network_j=ledger.network_j,
            carbon_g=ledger.carbon_g,
            cost=ledger.cost,
            peak_w=ledger.peak_w,
            over_budget_s=ledger.over_budget_s,
            over_budget_j=ledger.over_budget_j,
            budget_w=world.settings.budget_w,
            power_times_s=np.array(ledger.times_s),
            power_w=np.array(ledger.powers_w),
            busy_gpu_s=tuple(busy_gpu_s),
            down_gpu_s=tuple(world.outages.gpu_s(now_s)),
            asleep_gpu_s=() if world.sleepers is None else world.sleepers.asleep_gpu_s(now_s),
            wakes=0 if world.sleepers is None else world.sleepers.wakes,
            isolates=world.machines.emptiest,
            never=dict(self.never),
            refused=tuple(decisions.refused),
            refusals=decisions.refusals,
            log=world.log.copy() if self.ended is SimulationEnd.NOT_YET else world.log,
            wall_s=self.wall_s,
            policy_s=decisions.policy_s,
            ended=self.ended,
            left=self._reasons_left()
            if self.ended in (SimulationEnd.STUCK, SimulationEnd.STALLED)
            else {},
        )

    def save(self, path: Path) -> None:
        """Save the state to a file, from which `load` continues with the same result.

        Raises:
            ConfigError: it contains something that cannot be pickled, such as a policy with a
                lambda.
        """
        try:
            payload = pickle.dumps(self, protocol=pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ConfigError(
                f"{path}: this simulation cannot be saved: {error}; "
                "policies, oracles and objectives have to be made of named functions and classes"
            ) from error
        atomic_write(path, MAGIC + hashlib.sha256(payload).digest() + payload, durable=True)

    @classmethod
    def load(cls, path: Path) -> "Simulation":
        """Load a saved simulation. The file is trusted, because a pickle can run code.

        Raises:
            ConfigError: missing or damaged file, or another version.
        """
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
        if not content.startswith(MAGIC):
            raise ConfigError(f"{path}: no simulation saved by this version; simulate again")
        begin = len(MAGIC) + DIGEST_BYTES
        digest, payload = content[len(MAGIC) : begin], content[begin:]
        if hashlib.sha256(payload).digest() != digest:
            raise ConfigError(f"{path}: damaged (its checksum is wrong); simulate again")
        try:
            found = pickle.loads(payload)
        except (pickle.UnpicklingError, AttributeError, ImportError) as error:
            raise ConfigError(f"{path}: refers to code of another version: {error}") from error
        if not isinstance(found, cls):
            raise ConfigError(f"{path}: holds no simulation")
        return found

    def _loop(self, until_s: float) -> None:
        # local names are faster than attributes in millions of iterations
        world, invariants, patience = self.world, self._invariants, self.settings.patience
        heap, running, waiting = world.heap, world.running, world.queue.waiting
        free, advance = world.machines.free.by_type, world.ledger.advance
        arrival_s, needs_free_gpus = self._arrival_s, self.decisions.policy.needs_free_gpus
        decide = self._decide_at_rounds if self.settings.round_s else self.decisions.ask_until_quiet
        next_arrival_s = arrival_s[self.arrived]
        while True:
            first_s = heap[0][0] if heap else math.inf
            now_s = first_s if first_s < next_arrival_s else next_arrival_s
            if now_s > until_s or now_s == math.inf or not (running or self._may_continue(now_s)):
                break
            advance(now_s)
            is_news = is_progress = False
            if first_s <= now_s:
                while heap and heap[0][0] <= now_s:
                    _, what, about, version = heappop(heap)
                    if what != END:
                        is_news |= self._handle(now_s, what, about, version)
                    elif (found := running.get(about)) is not None and found.version == version:
                        world.finish(now_s, found)
                        is_news = is_progress = True
            while next_arrival_s <= now_s:
                self._arrive(now_s, self.arrived)
                next_arrival_s = arrival_s[self.arrived]
                is_news = is_progress = True
            if is_news and (not needs_free_gpus or (waiting and any(free))):
                decide(now_s)
            if invariants is not None:
                invariants.check(self.arrived, len(self.never))
            if is_progress:
                self._idle_events = 0
                continue
            self._idle_events += 1
            if self._idle_events > patience:
                self.ended = SimulationEnd.STALLED
                return
        self._set_end(until_s, now_s)

    def _realised_delay(self, now_s: float) -> RealisedDelay:
        """Return the ages of the jobs so far, and those in the schedules of the references.

        Those have the same jobs up to now, so this uses nothing of the future.
        """
        found = self._delay
        if found is None or now_s >= self._delay_s + DELAY_PERIOD_S:
            for each in self._references:
                each._loop(now_s)
            theirs = tuple(each.world.ages(now_s) for each in self._references)
            jobs, own = self.arrived - len(self.never), self.world.ages(now_s)
            self._delay = found = RealisedDelay(jobs, own, theirs)
            self._delay_s = now_s
        return found

    def _arrive(self, now_s: float, job: int) -> None:
        self.arrived += 1
        self.world.log.pending.append((now_s, ARRIVE, job, 0))
        if self._why_never and (why := self._why_never.get(self.world.kind[job], "")):
            self.never[job] = why
        else:
            self.world.queue.add(job, self._work[job])
            self.world.present_since_s += self._arrival_s[job]

    def _handle(self, now_s: float, what: int, about: int, version: int) -> bool:
        """Handle an event other than the end of a job; return True if the policy must be asked."""
        if what == NODE:
            self._nodes_to_come -= 1
            if not self.world.move_node(now_s, about, is_up=bool(version)):
                return False
            self._idle_events = 0
        elif what == RATES:
            self.world.ledger.change_rates(now_s)
            self._push_rate_change(now_s)
        elif what == SLEEP:
            assert self.world.sleepers is not None  # which made this event
            self.world.sleepers.update(now_s, about)
            return False
        elif what == WAKE:
            self.decisions.wakes.discard(now_s)
        elif what in (WORK_BEGIN, WORK_END):
            return self._change_work(now_s, what, about, version)
        else:
            self._next_round = -1
        return True

    def _change_work(self, now_s: float, what: int, job: int, version: int) -> bool:
        """Change the power of a running job, which the scheduler does not notice."""
        segment = self.world.running.get(job)
        if segment is None:
            return False
        if what == WORK_BEGIN:
            # the end of a job may have moved since, its start has not
            if segment.works_from_s == now_s:
                self.world.begin_work(now_s, segment)
        elif segment.version == version:
            self.world.end_work(now_s, segment)
        return False

    def _decide_at_rounds(self, now_s: float) -> None:
        """Ask the policy once per round, now or at the next round."""
        round_s = self.settings.round_s
        assert round_s is not None  # this method is used only with rounds
        round_number = math.floor(now_s / round_s)
        while round_number * round_s < now_s:
            round_number += 1
        if round_number * round_s == now_s and round_number != self._last_round:
            self._last_round = round_number
            if not self.decisions.ask(now_s):
                return
        if round_number == self._last_round:
            round_number += 1
        if self._next_round < 0:
            self._next_round = round_number
            heappush(self.world.heap, (round_number * round_s, ROUND, 0, 0))

    def _push_rate_change(self, now_s: float) -> None:
        next_s = min(each.next_change_s(now_s) for each in self._steps())
        if next_s < math.inf:
            heappush(self.world.heap, (next_s, RATES, 0, 0))

    def _steps(self) -> list[StepFunction]:
        settings = self.settings
        steps = (settings.budget_w, settings.carbon_g_per_kwh, settings.price_per_kwh)
        return [each for each in steps if each is not None]

    def _may_continue(self, now_s: float) -> bool:
        """With nothing running, return True if future events can still start a job."""
        if self.arrived < len(self.world.jobs) or self.settings.horizon_s < math.inf:
            return True
        if not len(self.world.queue):
            return False
        if self._nodes_to_come:
            self._last_news_s = now_s
            return True
        if self.decisions.wakes:
            self._last_news_s = now_s
            return self._idle_events < MOST_IDLE_EVENTS
        if self._idle_events == 0:
            self._last_news_s = self.world.ledger.now_s
        # A job preempted by a decrease of the budget may start again at the next increase.
        self._last_news_s = max(self._last_news_s, self.world.stopped_s)
        if self._next_round >= 0:
            return self._idle_events < MOST_IDLE_EVENTS
        # Rates that repeat: a job that did not start in a whole period never will.
        periods_s = [each.period_s for each in self._steps() if each.period_s < math.inf]
        last_s = [each.times_s[-1] for each in self._steps() if math.isinf(each.period_s)]
        return now_s <= max(self._last_news_s + max(periods_s, default=0.0), *last_s, 0.0)

    def _set_end(self, until_s: float, next_s: float) -> None:
        """Set the reason why the loop stopped."""
        is_open = self.settings.horizon_s == math.inf
        if is_open and not self.world.running and self.arrived == len(self.world.jobs):
            if not len(self.world.queue):
                self.ended = SimulationEnd.DONE
                return
            if next_s <= until_s or next_s == math.inf:
                self.ended = SimulationEnd.STUCK
                return
        self.world.ledger.advance(until_s)
        if until_s == self.settings.horizon_s:
            self.ended = SimulationEnd.HORIZON

    def _reasons_left(self) -> dict[int, str]:
        """Return why each waiting job was not started: impossible, or starved by the policy."""
        headroom = Headroom(self.view)
        return {job: self._reason_left(headroom, job) for job in self.view.queue.in_order()}

    def _reason_left(self, headroom: Headroom, job: int) -> str:
        world, policy = self.world, self.decisions.policy
        kind = world.kind[job]
        label, free = world.jobs.kinds[kind].label, world.machines.free
        if not any(free.fits(choice.shape) for choice in world.choices[kind]):
            down = [world.cluster.node_names[node] for node in sorted(world.outages.since_s)]
            if down:
                return f"{label}: impossible: its GPUs are down: {', '.join(down)}"
            return (
                f"{label}: starved: its GPUs were not free, and {policy.name} did not wait for them"
            )
        if why := headroom.why_never(job):
            return f"{label}: impossible: {why}"
        return f"{label}: starved: it could run, but {policy.name} never started it"


def _check_input(cluster: Cluster, jobs: JobTable, settings: EngineSettings) -> None:
    """Check jobs and node events.

    Raises:
        ConfigError: which job or event, and what is wrong with it.
    """
    for name, column in (("arrival_s", jobs.arrival_s), ("work", jobs.work)):
        bad = np.flatnonzero(~(np.isfinite(column) & (column >= 0.0)))
        if len(bad):
            raise ConfigError(
                f"jobs: {name} of job {bad[0]} is {column[bad[0]]:g}; give a number from 0 on"
            )
    for event in settings.node_events:
        if not 0 <= event.node < len(cluster.node_groups):
            raise ConfigError(
                f"node_events: node {event.node}; the cluster has nodes 0 to "
                f"{len(cluster.node_groups) - 1}"
            )
        if not 0.0 <= event.time_s < math.inf:
            raise ConfigError(f"node_events: time_s is {event.time_s:g}; give seconds from 0 on")
