"""The result of a simulation, at its end or on the way."""

from typing import TYPE_CHECKING

import numpy as np

from wattloop.schedule.engine.result import Ended, Result
from wattloop.schedule.policies.headroom import Headroom

if TYPE_CHECKING:
    from wattloop.schedule.engine.simulation import Simulation

__all__ = ["result_of"]


def result_of(simulation: "Simulation") -> Result:
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
    return Result(
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
        log=world.log.copy() if simulation.ended is Ended.NOT_YET else world.log,
        wall_s=simulation.wall_s,
        policy_s=decisions.policy_s,
        ended=simulation.ended,
        left=_left(simulation) if simulation.ended in (Ended.STUCK, Ended.STALLED) else {},
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
