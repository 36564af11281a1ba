"""What a simulation leaves behind."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.engine.event_log import EventLog
from wattloop.schedule.jobs.table import JobTable
from wattloop.schedule.step_function import StepFunction

Floats = NDArray[np.float64]


class FinishedJob(StrEnum):
    """Why a simulation went no further."""

    NOT_YET = "not yet"
    """It was asked to stop here, and can go on."""
    DONE = "done"
    """All jobs that can run at all are done."""
    HORIZON = "horizon"
    """Its time was up; jobs may wait or run."""
    STUCK = "stuck"
    """Jobs wait, nothing runs, and nothing to come will change that: see `left`."""
    STALLED = "stalled"
    """Many events went by (`Settings.patience`) and no job came or ended: see `left`."""


@dataclass(frozen=True, eq=False)
class SimulationResult:
    """Jobs, energy and events of one simulation. All arrays over jobs are by job number.

    Attributes:
        policy: name of the policy.
        cluster, jobs: what was simulated.
        end_s: when the simulation ended.
        started_s, finished_s: of each job, first start and end; NaN for never.
        energy_j: of each job's GPUs while it had them.
        wasted_j: the part of it whose work was lost, or that went into restarts.
        gpu_s: GPU seconds of each job.
        preemptions: how often each was stopped by the policy.
        interruptions: how often each was stopped by a node that died.
        active_j, idle_j, host_j, network_j: the cluster's energy by what drew it.
        carbon_g, cost: None where nobody said what electricity emits or costs.
        peak_w, over_budget_s, over_budget_j: of the whole cluster's power; joules above the budget.
        budget_w: as given.
        power_times_s, power_w: the whole cluster's power, each value from its time on.
        busy_gpu_s: GPU seconds of work by GPU type.
        down_gpu_s: GPU seconds that GPUs of each type were away.
        never: jobs that could never run -> why.
        refused: impossible actions of the policy, in words (the first hundred), and how many.
        refusals: how many there were.
        log: all events.
        wall_s, policy_s: time this simulation took, and the policy's part of it.
        ended: why it went no further.
        left: jobs that still waited when it was stuck or stalled -> why.
    """

    policy: str
    cluster: Cluster
    jobs: JobTable
    end_s: float
    started_s: Floats
    finished_s: Floats
    energy_j: Floats
    wasted_j: Floats
    gpu_s: Floats
    preemptions: NDArray[np.int64]
    interruptions: NDArray[np.int64]
    active_j: float
    idle_j: float
    host_j: float
    network_j: float
    carbon_g: float | None
    cost: float | None
    peak_w: float
    over_budget_s: float
    over_budget_j: float
    budget_w: StepFunction
    power_times_s: Floats
    power_w: Floats
    busy_gpu_s: tuple[float, ...]
    down_gpu_s: tuple[float, ...]
    never: Mapping[int, str]
    refused: tuple[str, ...]
    refusals: int
    log: EventLog
    wall_s: float
    policy_s: float
    ended: FinishedJob = FinishedJob.DONE
    left: Mapping[int, str] = field(default_factory=dict)

    @property
    def total_j(self) -> float:
        """Energy of the whole cluster from start to end."""
        return self.active_j + self.idle_j + self.host_j + self.network_j

    @property
    def is_done(self) -> NDArray[np.bool_]:
        return np.isfinite(self.finished_s)

    @property
    def event_hash(self) -> str:
        """The same for the same jobs, seed and policy."""
        return self.log.digest()
