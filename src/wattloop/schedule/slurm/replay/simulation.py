"""Simulation of a replay: the same jobs under the same policy."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from wattloop.core.errors import ConfigError
from wattloop.schedule.engine.result import SimulationResult
from wattloop.schedule.engine.simulation import Simulation
from wattloop.schedule.estimates.oracle import Factors, Oracle, PlacementOptions
from wattloop.schedule.jobs.kind import JobKind
from wattloop.schedule.jobs.table import JobTable
from wattloop.schedule.policies.registry import policy_from
from wattloop.schedule.slurm.replay.latency import Latency
from wattloop.schedule.slurm.replay.plan import ReplayPlan
from wattloop.schedule.slurm.replay.result import ReplayFigures, simulated_figures

TIE = 1e-6
"""Share by which faster placements stay faster in the estimates, which orders the nodes."""


class TimeLimits(Oracle):
    """Oracle that predicts the time limit of each job for every placement."""

    name = "time limits"

    def __init__(self, truth: Oracle, jobs: JobTable, limits_s: Sequence[float]) -> None:
        self._truth, self._work = truth, jobs.work
        self._limits_s = limits_s

    def options(self, kind: JobKind) -> PlacementOptions:
        return self._truth.options(kind)

    def factors(self, job: int, kind: JobKind) -> Factors | None:
        """Return the time limit divided by the true time, for each placement."""
        true_s = np.maximum(self._work[job] * self.options(kind).sample_s, 1e-9)
        believed_s = self._limits_s[job] * (1.0 + TIE * true_s)
        return Factors(believed_s / true_s, np.ones(len(true_s)))


BUILTIN, BACKFILL = "sched/builtin", "sched/backfill"
USUAL_LOOK_S = 30.0
"""Slurm's default `bf_interval`."""


@dataclass(frozen=True, slots=True)
class OwnScheduler:
    """Configuration of Slurm's own scheduler.

    Attributes:
        kind: `SchedulerType` of slurm.conf.
        look_s: interval of backfill passes. Slurm starts the first jobs of its queue after every
            event.
    """

    kind: str
    look_s: float = 0.0

    @property
    def policy(self) -> str:
        return "fifo" if self.kind == BUILTIN else f"backfill{{look_s: {self.look_s:g}}}"


def own_scheduler(slurm: Callable[..., str]) -> OwnScheduler:
    """Read the configuration of Slurm's scheduler."""
    config = slurm("scontrol", "show", "config")
    match = re.search(r"^SchedulerType\s*= (\S+)", config, re.M)
    kind = match[1] if match else ""
    if kind == BUILTIN:
        return OwnScheduler(kind)
    if kind != BACKFILL:
        raise ConfigError(
            f"Slurm: the simulator does not support this SchedulerType; use {BACKFILL} or {BUILTIN}"
        )
    match = re.search(r"^SchedulerParameters\s*=.*\bbf_interval=(\d+)", config, re.M)
    return OwnScheduler(kind, float(match[1]) if match else USUAL_LOOK_S)


def simulate_replay(
    plan: ReplayPlan, policy: str | OwnScheduler, latency: Latency | None
) -> tuple[ReplayFigures, SimulationResult]:
    """Simulate the jobs of a plan.

    Slurm's own scheduler gets the jobs as submitted and knows only their time limits.
    """
    settings = plan.settings
    if latency is not None:
        settings = replace(
            settings, start_latency_s=latency.start_s, end_latency_s=latency.end_s or 0.0
        )
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
    return simulated_figures(replace(plan, settings=settings), result), result
