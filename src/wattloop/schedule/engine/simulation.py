"""The event loop: a heap of events, and a policy that is asked after each."""

import gc
import hashlib
import math
import os
import pickle
import tempfile
import time
from array import array
from heapq import heappop, heappush
from pathlib import Path

import numpy as np

from wattloop.core.errors import ConfigError
from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.engine.decisions import WAKE, Decisions
from wattloop.schedule.engine.event_log import EventKind
from wattloop.schedule.engine.execution import BEGIN, END, REST, Execution
from wattloop.schedule.engine.invariants import Invariants
from wattloop.schedule.engine.machines import why_never
from wattloop.schedule.engine.result import FinishedJob, SimulationResult
from wattloop.schedule.engine.settings import EngineSettings
from wattloop.schedule.estimates.oracle import Oracle
from wattloop.schedule.jobs.table import JobTable, uncapped
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.policies.power_budget import Headroom
from wattloop.schedule.step_function import StepFunction
from wattloop.schedule.view import ClusterView


def check_input(cluster: Cluster, jobs: JobTable, settings: EngineSettings) -> None:
    """Refuse what would make time run backwards or never end.

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


MAGIC = b"wattloop simulation 3\n"
DIGEST_BYTES = hashlib.sha256().digest_size


def save(thing: object, path: Path) -> None:
    """Write it whole or not at all: a file that is there can be loaded.

    Raises:
        ConfigError: it holds something that cannot be kept, such as a policy with a lambda.
    """
    try:
        payload = pickle.dumps(thing, protocol=pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"{path}: this simulation cannot be saved: {error}; "
            "policies, oracles and objectives have to be made of named functions and classes"
        ) from error
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(MAGIC + hashlib.sha256(payload).digest() + payload)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def load(path: Path) -> object:
    """What was saved.

    Raises:
        ConfigError: there is no such file, it is damaged, or of another version.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if not content.startswith(MAGIC):
        raise ConfigError(f"{path}: no simulation saved by this version; simulate again")
    digest, payload = content[len(MAGIC) :][:DIGEST_BYTES], content[len(MAGIC) + DIGEST_BYTES :]
    if hashlib.sha256(payload).digest() != digest:
        raise ConfigError(f"{path}: damaged (its checksum is wrong); simulate again")
    try:
        return pickle.loads(payload)
    except (pickle.UnpicklingError, AttributeError, ImportError) as error:
        raise ConfigError(f"{path}: names what is no longer there: {error}") from error


def result_of(simulation: "Simulation") -> SimulationResult:
    """Everything so far; running jobs with what they have had up to now. Changes nothing."""
    world, decisions = simulation.world, simulation.decisions
    ledger, accounts, now_s = world.ledger, world.accounts, world.ledger.now_s
    energy_j, gpu_s = np.array(accounts.energy_j), np.array(accounts.gpu_s)
    busy_gpu_s = accounts.busy_gpu_s.copy()
    for job, stretch in world.running.items():
        had_gpu_s = stretch.gpus * (now_s - stretch.started_s)
        energy_j[job] += stretch.energy_at_j(now_s)
        gpu_s[job] += had_gpu_s
        busy_gpu_s[stretch.type_index] += had_gpu_s
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
        never=dict(simulation.never),
        refused=tuple(decisions.refused),
        refusals=decisions.refusals,
        log=world.log.copy() if simulation.ended is FinishedJob.NOT_YET else world.log,
        wall_s=simulation.wall_s,
        policy_s=decisions.policy_s,
        ended=simulation.ended,
        left=_left(simulation)
        if simulation.ended in (FinishedJob.STUCK, FinishedJob.STALLED)
        else {},
    )


def _left(simulation: "Simulation") -> dict[int, str]:
    """Why each waiting job was not started: it is impossible, or the policy starved it."""
    headroom = Headroom(simulation.view)
    return {job: _why_left(simulation, headroom, job) for job in simulation.view.queue.in_order()}


def _why_left(simulation: "Simulation", headroom: Headroom, job: int) -> str:
    world, policy = simulation.world, simulation.decisions.policy
    kind = world.kind[job]
    label, free = world.jobs.kinds[kind].label, world.machines.free
    if not any(free.fits(choice.shape) for choice in world.choices[kind]):
        down = [world.cluster.node_names[node] for node in sorted(world.outages.since_s)]
        if down:
            return f"{label}: impossible: its GPUs are down: {', '.join(down)}"
        return f"{label}: starved: its GPUs were not free, and {policy.name} did not wait for them"
    if why := headroom.why_never(job):
        return f"{label}: impossible: {why}"
    return f"{label}: starved: it could run, but {policy.name} never started it"


# Order of what happens at one moment: ends first (0), so that their machines are free for the
# rest; then nodes and figures that change, arrivals, and last the policy.
NODE, TURN, ROUND = 1, 2, 4
ARRIVE = int(EventKind.ARRIVE)
GARBAGE_AFTER = 50_000
WAKES_IN_VAIN = 10_000
"""How often a policy may ask to be woken, with nothing running and nobody to come."""


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
        settings: EngineSettings | None = None,
    ) -> None:
        if not policy.sets_caps:
            jobs = uncapped(jobs)
        self.settings = settings or EngineSettings()
        check_input(cluster, jobs, self.settings)
        self.world = Execution(cluster, jobs, truth, oracle or truth, self.settings)
        self.decisions = Decisions(policy, self.world)
        self._invariants = Invariants(self.world) if self.settings.checks else None
        kinds = enumerate(jobs.kinds)
        why = {kind: why_never(each, truth.options(each), cluster) for kind, each in kinds}
        self._why_never = {kind: reason for kind, reason in why.items() if reason}
        self.never: dict[int, str] = {}
        self._arrival_s = array("d", [*jobs.arrival_s.tolist(), math.inf])
        self._work = array("d", jobs.work.astype(float).tobytes())
        self.arrived = 0
        self.ended = FinishedJob.NOT_YET
        self.wall_s = 0.0
        self._in_vain = 0
        self._last_news_s = 0.0
        self._next_round = self._last_round = -1
        self._nodes_to_come = len(self.settings.node_events)
        for event in self.settings.node_events:
            heappush(self.world.heap, (event.time_s, NODE, event.node, int(event.is_up)))
        self._push_turn(0.0)

    @property
    def view(self) -> ClusterView:
        return self.decisions.view

    def run(self, until_s: float = math.inf) -> SimulationResult:
        """Go on until all is done, the horizon is reached, or `until_s`."""
        begun_s, thresholds = time.perf_counter(), gc.get_threshold()
        # Nothing here goes in circles: looking for those every 700 objects takes a tenth of the
        # time.
        gc.set_threshold(GARBAGE_AFTER, *thresholds[1:])
        try:
            self._go_on(min(until_s, self.settings.horizon_s))
        finally:
            gc.set_threshold(*thresholds)
        self.wall_s += time.perf_counter() - begun_s
        return self.result()

    def result(self) -> SimulationResult:
        """What there is so far."""
        return result_of(self)

    def save(self, path: Path) -> None:
        """Write everything to a file, from which `load` goes on as if nothing had happened."""
        save(self, path)

    @classmethod
    def load(cls, path: Path) -> "Simulation":
        """A simulation as it was saved. The file is trusted: it can contain programs.

        Raises:
            ConfigError: there is no such file, it is damaged, or of another version.
        """
        found = load(path)
        if not isinstance(found, cls):
            raise ConfigError(f"{path}: holds no simulation")
        return found

    def _go_on(self, until_s: float) -> None:
        # Names of this function are quicker to look up than attributes: millions of turns.
        world, invariants, patience = self.world, self._invariants, self.settings.patience
        heap, running, waiting = world.heap, world.running, world.queue.waiting
        free, advance = world.machines.free.by_type, world.ledger.advance
        arrival_s, needs_free_gpus = self._arrival_s, self.decisions.policy.needs_free_gpus
        decide = self._decide_at_rounds if self.settings.round_s else self.decisions.ask_until_quiet
        next_arrival_s = arrival_s[self.arrived]
        while True:
            first_s = heap[0][0] if heap else math.inf
            now_s = first_s if first_s < next_arrival_s else next_arrival_s
            if now_s > until_s or now_s == math.inf or not (running or self._may_go_on(now_s)):
                break
            advance(now_s)
            is_news = is_progress = False
            if first_s <= now_s:
                while heap and heap[0][0] <= now_s:
                    _, what, about, version = heappop(heap)
                    if what != END:
                        is_news |= self._happen(now_s, what, about, version)
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
                self._in_vain = 0
                continue
            self._in_vain += 1
            if self._in_vain > patience:
                self.ended = FinishedJob.STALLED
                return
        self._come_to_rest(until_s, now_s)

    def _arrive(self, now_s: float, job: int) -> None:
        self.arrived += 1
        self.world.log.pending.append((now_s, ARRIVE, job, 0))
        if self._why_never and (why := self._why_never.get(self.world.kind[job], "")):
            self.never[job] = why
        else:
            self.world.queue.add(job, self._work[job])

    def _happen(self, now_s: float, what: int, about: int, version: int) -> bool:
        """Anything but the end of a job; whether the policy is to be asked."""
        if what == NODE:
            self._nodes_to_come -= 1
            if not self.world.move_node(now_s, about, is_up=bool(version)):
                return False
            self._in_vain = 0
        elif what == TURN:
            self.world.ledger.turn(now_s)
            self._push_turn(now_s)
        elif what == WAKE:
            self.decisions.wakes.discard(now_s)
        elif what in (BEGIN, REST):
            return self._begin_or_rest(now_s, what, about, version)
        else:
            self._next_round = -1
        return True

    def _begin_or_rest(self, now_s: float, what: int, job: int, version: int) -> bool:
        """The power of a running job changes, which its scheduler does not learn yet."""
        stretch = self.world.running.get(job)
        if stretch is None:
            return False
        if what == BEGIN:
            # Its end may have been moved meanwhile: what counts is whether this is its start.
            if stretch.works_from_s == now_s:
                self.world.begin(now_s, stretch)
        elif stretch.version == version:
            self.world.rest(now_s, stretch)
        return False

    def _decide_at_rounds(self, now_s: float) -> None:
        """Ask the policy if this is a round that it has not been asked at, else at the next."""
        round_s = self.settings.round_s
        assert round_s is not None  # or rounds would not be asked for
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

    def _push_turn(self, now_s: float) -> None:
        next_s = min(each.next_change_s(now_s) for each in self._steps())
        if next_s < math.inf:
            heappush(self.world.heap, (next_s, TURN, 0, 0))

    def _steps(self) -> list[StepFunction]:
        settings = self.settings
        steps = (settings.budget_w, settings.carbon_g_per_kwh, settings.price_per_kwh)
        return [each for each in steps if each is not None]

    def _may_go_on(self, now_s: float) -> bool:
        """With nothing running: whether what comes next can still matter to a job."""
        if self.arrived < len(self.world.jobs) or self.settings.horizon_s < math.inf:
            return True
        if not len(self.world.queue):
            return False
        if self._nodes_to_come:
            self._last_news_s = now_s
            return True
        if self.decisions.wakes:
            self._last_news_s = now_s
            return self._in_vain < WAKES_IN_VAIN
        if self._in_vain == 0:
            self._last_news_s = self.world.ledger.now_s
        # A job that runs in parts, stopped when a budget falls, may start again when it rises.
        self._last_news_s = max(self._last_news_s, self.world.stopped_s)
        if self._next_round >= 0:
            return self._in_vain < WAKES_IN_VAIN
        # Budgets and prices that repeat: what did not happen in a whole period never will.
        periods_s = [each.period_s for each in self._steps() if each.period_s < math.inf]
        last_s = [each.times_s[-1] for each in self._steps() if math.isinf(each.period_s)]
        return now_s <= max(self._last_news_s + max(periods_s, default=0.0), *last_s, 0.0)

    def _come_to_rest(self, until_s: float, next_s: float) -> None:
        """Why nothing more happens for now."""
        is_open = self.settings.horizon_s == math.inf
        if is_open and not self.world.running and self.arrived == len(self.world.jobs):
            if not len(self.world.queue):
                self.ended = FinishedJob.DONE
                return
            if next_s <= until_s or next_s == math.inf:
                self.ended = FinishedJob.STUCK
                return
        self.world.ledger.advance(until_s)
        if until_s == self.settings.horizon_s:
            self.ended = FinishedJob.HORIZON
