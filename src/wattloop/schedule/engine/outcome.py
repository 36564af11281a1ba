"""The result of a simulation, at its end or on the way."""

from typing import TYPE_CHECKING

import numpy as np

from wattloop.schedule.engine.execution import Execution
from wattloop.schedule.engine.result import Ended, Result

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
        left=_left(world, decisions.policy.name)
        if simulation.ended in (Ended.STUCK, Ended.STALLED)
        else {},
    )


def _left(world: Execution, policy: str) -> dict[int, str]:
    """Why each waiting job was never started, as far as the machines and the budget tell."""
    why: dict[int, str] = {}
    for kind in {world.kind[job] for job in world.queue.in_order()}:
        why[kind] = _why_left(world, kind, policy)
    return {job: why[world.kind[job]] for job in world.queue.in_order()}


def _why_left(world: Execution, kind: int, policy: str) -> str:
    label = world.jobs.kinds[kind].label
    free = world.machines.free
    fitting = [choice for choice in world.choices[kind] if free.fits(choice.shape)]
    if not fitting:
        down = [world.cluster.node_names[node] for node in sorted(world.outages.since_s)]
        why = f"; down: {', '.join(down)}" if down else ""
        return f"{label}: its GPUs are not free{why}"
    ledger = world.ledger
    least_w = min(choice.power_w - choice.idle_w for choice in fitting)
    spare_w = max(world.settings.budget_w.values) - ledger.power_w
    if least_w > spare_w:
        return f"{label}: needs {least_w:.0f} W more at least, the budget leaves {spare_w:.0f} W"
    return f"{label}: it fits, but {policy} never started it"
