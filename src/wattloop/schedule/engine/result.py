"""Result of a simulation."""

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


class SimulationEnd(StrEnum):
    """Reason why a simulation stopped."""

    NOT_YET = "not yet"
    """It was stopped at a given time and can continue."""
    DONE = "done"
    """All jobs that can run are done."""
    HORIZON = "horizon"
    """Its horizon was reached; jobs may wait or run."""
    STUCK = "stuck"
    """Jobs wait, nothing runs, and no future event changes that: see `left`."""
    STALLED = "stalled"
    """No job came or ended in many events (`EngineSettings.patience`): see `left`."""


@dataclass(frozen=True, eq=False)
class SimulationResult:
    """Jobs, energy and events of one simulation. Arrays over jobs are by job number.

    Attributes:
        started_s, finished_s: first start and end of each job; NaN for never.
        energy_j: energy of each job's GPUs during its allocations.
        wasted_j: part of that energy for lost work and restarts.
        preemptions, interruptions: stops of each job by the policy, and by failed nodes.
        resizes: moves of each job to other GPUs or another batch.
        active_j, idle_j, host_j, network_j: the cluster's energy by consumer.
        carbon_g, cost: None without a carbon intensity or price of electricity.
        power_times_s, power_w: power of the whole cluster, each value from its time on.
        busy_gpu_s, down_gpu_s: allocated and failed GPU seconds by GPU type.
        asleep_gpu_s: GPU seconds in power-down states by GPU type; empty for a policy that does
            not use them. `wakes` counts the starts that had to wait for a GPU to wake up.
        isolates: jobs got the nodes with the most free GPUs.
        never: jobs that can never run -> why.
        refused: impossible actions of the policy (the first hundred); `refusals` counts all.
        wall_s, policy_s: real duration of the simulation, and the policy's part of it.
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
    resizes: NDArray[np.int64]
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
    ended: SimulationEnd = SimulationEnd.DONE
    left: Mapping[int, str] = field(default_factory=dict)
    asleep_gpu_s: tuple[float, ...] = ()
    wakes: int = 0
    isolates: bool = False

    @property
    def total_j(self) -> float:
        """Energy of the whole cluster."""
        return self.active_j + self.idle_j + self.host_j + self.network_j

    @property
    def is_done(self) -> NDArray[np.bool_]:
        return np.isfinite(self.finished_s)

    @property
    def event_hash(self) -> str:
        return self.log.digest()
