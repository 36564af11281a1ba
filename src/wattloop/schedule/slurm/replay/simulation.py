"""The simulator's answer for the same jobs under the same policy."""

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
from wattloop.schedule.slurm.replay.outcome import Figures, simulated_figures
from wattloop.schedule.slurm.replay.plan import ReplayPlan

TIE = 1e-6


"""Share by which faster placements are still believed faster: nodes are tried in that order."""


class TimeLimits(Oracle):
    """Every job takes its time limit, wherever it runs.

    Args:
        truth: time and power as they turn out.
        jobs: the jobs.
        limits_s: of each.
    """

    name = "time limits"

    def __init__(self, truth: Oracle, jobs: JobTable, limits_s: Sequence[float]) -> None:
        self._truth, self._work = truth, jobs.work
        self._limits_s = limits_s

    def options(self, kind: JobKind) -> PlacementOptions:
        return self._truth.options(kind)

    def factors(self, job: int, kind: JobKind) -> Factors | None:
        """The limit over the true time, for each placement."""
        true_s = np.maximum(self._work[job] * self.options(kind).sample_s, 1e-9)
        believed_s = self._limits_s[job] * (1.0 + TIE * true_s)
        return Factors(believed_s / true_s, np.ones(len(true_s)))


BUILTIN, BACKFILL = "sched/builtin", "sched/backfill"


USUAL_LOOK_S = 30.0


"""Slurm's `bf_interval` where nobody sets it."""


@dataclass(frozen=True, slots=True)
class OwnScheduler:
    """As it is configured.

    Attributes:
        kind: `SchedulerType` of slurm.conf.
        look_s: time between two looks for gaps, where it fills gaps; the first jobs of its queue
            it starts whenever something happens.
    """

    kind: str
    look_s: float = 0.0

    @property
    def policy(self) -> str:
        """Name and parameters of ours."""
        return "fifo" if self.kind == BUILTIN else f"backfill{{look_s: {self.look_s:g}}}"


def own_scheduler(slurm: Callable[..., str]) -> OwnScheduler:
    """What a Slurm says of itself.

    Args:
        slurm: runs one of its commands.

    Raises:
        ConfigError: it has a scheduler that the simulator does not know.
    """
    said = {}
    for line in slurm("scontrol", "show", "config").splitlines():
        name, _, value = line.partition("=")
        said[name.strip()] = value.strip()
    kind = said.get("SchedulerType", "")
    if kind not in (BUILTIN, BACKFILL):
        raise ConfigError(
            f"Slurm: SchedulerType is none that the simulator knows; use {BACKFILL} or {BUILTIN}"
        )
    return OwnScheduler(kind, _look_s(said) if kind == BACKFILL else 0.0)


def _look_s(said: dict[str, str]) -> float:
    for word in said.get("SchedulerParameters", "").split(","):
        name, _, value = word.partition("=")
        if name.strip() == "bf_interval" and value.strip().isdigit():
            return float(value)
    return USUAL_LOOK_S


def simulated(
    plan: ReplayPlan, policy: str | OwnScheduler, latency: Latency | None
) -> tuple[Figures, SimulationResult]:
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
