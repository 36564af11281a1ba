"""What the simulator says of the same jobs under the same policy, told what Slurm takes."""

from dataclasses import replace

from wattloop.schedule.engine.result import Result
from wattloop.schedule.engine.simulation import Simulation
from wattloop.schedule.policies.registry import policy_from
from wattloop.schedule.slurm.replay.latency import Latency
from wattloop.schedule.slurm.replay.limits import TimeLimits
from wattloop.schedule.slurm.replay.outcome import Figures, simulated_figures
from wattloop.schedule.slurm.replay.own_scheduler import OwnScheduler
from wattloop.schedule.slurm.replay.plan import Plan

__all__ = ["simulated"]


def simulated(
    plan: Plan, policy: str | OwnScheduler, latency: Latency | None
) -> tuple[Figures, Result]:
    """The same jobs in the simulator.

    Args:
        plan: the jobs.
        policy: name of one of ours, or Slurm's own scheduler, which gets jobs as their users ask
            for them, and knows their time limits only.
        latency: of the real Slurm; None for one that starts and clears away at once.
    """
    settings = plan.settings
    if latency is not None:
        settings = replace(
            settings, start_latency_s=latency.start_s, end_latency_s=latency.end_s or 0.0
        )
    told = replace(plan, settings=settings)
    jobs, oracle = plan.open, plan.truth
    if isinstance(policy, OwnScheduler):
        policy, jobs = policy.policy, plan.asked
        limits_s = [60.0 * plan.limit_min(job) for job in range(len(jobs))]
        oracle = TimeLimits(plan.truth, jobs, limits_s)
    result = Simulation(
        plan.cluster,
        jobs,
        policy_from(policy),
        truth=plan.truth,
        oracle=oracle,
        settings=settings,
    ).run()
    return simulated_figures(told, result), result
