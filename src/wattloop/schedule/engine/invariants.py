"""Invariants that hold after every event, for any policy.

Everything is counted again from the GPU masks of running jobs and the cluster's description, never
from the engine's own sums, so an error in one of them shows as a difference.
"""

import math
from typing import NamedTuple

import numpy as np

from wattloop.core.errors import InvariantBroken
from wattloop.schedule.engine.event_log import Event
from wattloop.schedule.engine.execution import END, Execution

ROUNDING = 1e-9


class _Parts(NamedTuple):
    """Power or energy by consumer."""

    active: float
    idle: float
    host: float
    network: float


class Invariants:
    """Checks of a simulated cluster after every event."""

    def __init__(self, world: Execution) -> None:
        self._world = world
        self._now_s = world.ledger.now_s
        self._power = self._watts()
        self._joules = _Parts(0.0, 0.0, 0.0, 0.0)

    def check(self, arrived: int, never: int) -> None:
        """Check everything; `arrived` counts arrived jobs, `never` those that can never run.

        Raises:
            InvariantBroken: which invariant, and after which event.
        """
        self._no_job_lost(arrived, never)
        self._no_gpu_twice()
        self._free_counts()
        self._power_and_energy()
        self._caps()
        self._ends()

    def _no_job_lost(self, arrived: int, never: int) -> None:
        world = self._world
        done = int(np.count_nonzero(np.isfinite(np.array(world.accounts.finished_s))))
        waiting, running = len(world.queue), len(world.running)
        if arrived != waiting + running + done + never:
            self._broken(
                f"{arrived} jobs came, but {waiting} wait, {running} run, {done} are done and "
                f"{never} can never run"
            )
        both = [job for job in world.running if job in world.queue]
        if both:
            self._broken(f"job {both[0]} runs and waits")

    def _no_gpu_twice(self) -> None:
        world, machines = self._world, self._world.machines
        seen = list(machines.free_mask)
        for job, segment in world.running.items():
            had = 0
            for node, mask in segment.nodes:
                if not machines.is_up[node]:
                    self._broken(f"job {job} runs on node {node}, which is down")
                if seen[node] & mask:
                    self._broken(f"job {job} has GPUs of node {node} that are not its own")
                if machines.node_type[node] != segment.type_index:
                    self._broken(f"job {job} runs on node {node}, which has other GPUs")
                seen[node] |= mask
                had += mask.bit_count()
            if had != segment.gpus:
                self._broken(f"job {job} has {had} GPUs instead of {segment.gpus}")
        for node, mask in enumerate(machines.free_mask):
            if world.sleepers is None or not machines.is_up[node]:
                continue
            if world.sleepers.idle_mask(node) != mask:
                self._broken(f"idle GPUs of node {node} are not its free ones")
        for node, mask in enumerate(seen):
            if mask != (1 << machines.sizes[node]) - 1:
                self._broken(f"GPUs of node {node} are neither free nor used")

    def _free_counts(self) -> None:
        machines = self._world.machines
        nodes_with = [[0] * len(each) for each in machines.nodes_with]
        for node, mask in enumerate(machines.free_mask):
            type_index, free = machines.node_type[node], mask.bit_count()
            if machines.is_up[node]:
                nodes_with[type_index][free] += 1
            if machines.is_up[node] != (node in machines.nodes_with[type_index][free]):
                self._broken(f"node {node} is not kept among those with {free} free GPUs")
        by_type = [sum(n * nodes for n, nodes in enumerate(each)) for each in nodes_with]
        if machines.free.nodes_with != nodes_with or machines.free.by_type != by_type:
            self._broken("free GPUs as policies see them are not those of the nodes")

    def _watts(self) -> _Parts:
        """Compute the power of the cluster from scratch."""
        world = self._world
        cluster, machines = world.cluster, world.machines
        host_w = idle_w = 0.0
        for node, group in enumerate(cluster.node_groups):
            if machines.is_up[node]:
                free = machines.free_mask[node].bit_count()
                busy = machines.sizes[node] - free
                host_w += group.host_w + busy * group.host_busy_w_per_gpu
                idle_w += free * cluster.types[machines.node_type[node]].idle_w
                if world.sleepers is not None:
                    saved = world.sleepers.saved(world.ledger.now_s, node)
                    host_w, idle_w = host_w - saved.host_w, idle_w - saved.gpus_w
        now_s, active_w = world.ledger.now_s, 0.0
        for job, each in world.running.items():
            choice = world.choices[world.kind[job]][each.option]
            rests_w = choice.idle_w if each.waiting_w is None else each.waiting_w
            rests_w = choice.idle_w if each.is_ending else rests_w
            active_w += choice.power_w if each.is_at_work(now_s) else rests_w
        return _Parts(active_w, idle_w, host_w, cluster.network_w)

    def _power_and_energy(self) -> None:
        world, ledger, accounts = self._world, self._world.ledger, self._world.accounts
        if ledger.now_s < self._now_s:
            self._broken(f"time runs backwards, from {self._now_s:g} s")
        passed_s = ledger.now_s - self._now_s
        self._joules = _Parts(
            *(j + w * passed_s for j, w in zip(self._joules, self._power, strict=True))
        )
        self._now_s, self._power = ledger.now_s, self._watts()
        power_w, energy_j = sum(self._power), sum(self._joules)
        if not _equal(ledger.power_w, power_w):
            self._broken(f"power is {power_w:g} W, accounted {ledger.power_w:g} W")
        if not _equal(ledger.energy_j, energy_j):
            self._broken(f"energy is {energy_j:g} J, accounted {ledger.energy_j:g} J")
        running_j = sum(each.energy_at_j(ledger.now_s) for each in world.running.values())
        jobs_j = math.fsum(accounts.energy_j) + running_j
        if not _equal(jobs_j, self._joules.active):
            self._broken(f"jobs drew {jobs_j:g} J, GPUs at work {self._joules.active:g} J")
        if not _equal(ledger.host_j, self._joules.host):
            self._broken(f"hosts drew {self._joules.host:g} J, accounted {ledger.host_j:g} J")
        drawn_j, wasted_j = np.array(accounts.energy_j), np.array(accounts.wasted_j)
        wrong = np.flatnonzero(wasted_j > drawn_j * (1 + ROUNDING) + ROUNDING)
        if len(wrong):
            self._broken(f"job {wrong[0]} wasted more energy than it drew")
        gpus = np.zeros(len(world.jobs.users), dtype=np.int64)
        for job, segment in world.running.items():
            gpus[world.jobs.user[job]] += segment.gpus
        if not np.array_equal(gpus, world.use.gpus()):
            self._broken("users have other GPUs than their jobs")

    def _caps(self) -> None:
        world = self._world
        for job, segment in world.running.items():
            options = world.queue.options(job)
            cap_w = float(options.cap_w[segment.option]) * segment.gpus
            if segment.power_w > cap_w * (1 + ROUNDING):
                self._broken(
                    f"job {job} draws {segment.power_w:g} W under a cap of {cap_w:g} W: "
                    "the oracle of true power has it so"
                )

    def _ends(self) -> None:
        ends = {entry[2:] for entry in self._world.heap if entry[1] == END}
        for job, segment in self._world.running.items():
            if (job, segment.version) not in ends:
                self._broken(f"job {job} runs and would never end")

    def _broken(self, what: str) -> None:
        raise InvariantBroken(f"after {_event_text(self._world.log.last())}: {what}")


def _event_text(event: Event | None) -> str:
    if event is None:
        return "nothing"
    about = f"job {event.job}" if event.job >= 0 else f"node {event.detail}"
    return f"{event.what.name.lower().replace('_', ' ')} of {about} at {event.time_s:g} s"


def _equal(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=ROUNDING * 1e3, abs_tol=1e-6)
