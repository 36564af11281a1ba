"""View of a policy: queue, machines, users, power, budget, clock."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.free_gpus import FreeGpus
from wattloop.schedule.jobs.table import JobTable
from wattloop.schedule.preemption import Keeps, Preemption
from wattloop.schedule.queue import JobQueue
from wattloop.schedule.step_function import StepFunction


@dataclass(slots=True, eq=False)
class RunningJob:
    """Running job with its allocation.

    Attributes:
        nodes: (node, bit mask of its GPUs there), in the order of allocation.
        started_s: time of the last start or recap.
        power_w: measured power of its GPUs.
        expected_end_s: estimated end, by the estimate at its start or last recap.
        work_at_start: remaining samples at `started_s`.
    """

    job: int
    option: int
    type_index: int
    gpus: int
    nodes: tuple[tuple[int, int], ...]
    started_s: float
    power_w: float
    expected_end_s: float
    work_at_start: float

    @property
    def is_done(self) -> bool:
        return False


class UserUsage:
    """GPU seconds by user, including running jobs up to the time of the query."""

    def __init__(self, users: int) -> None:
        # use(t) = offset + gpus * t: starting k GPUs at t adds k to the slope, -k t to the offset.
        self._offset_gpu_s = [0.0] * users
        self._gpus = [0] * users

    def start(self, user: int, gpus: int, now_s: float) -> None:
        self._offset_gpu_s[user] -= gpus * now_s
        self._gpus[user] += gpus

    def stop(self, user: int, gpus: int, now_s: float) -> None:
        self._offset_gpu_s[user] += gpus * now_s
        self._gpus[user] -= gpus

    def gpus(self) -> NDArray[np.int64]:
        return np.asarray(self._gpus, dtype=np.int64)

    def gpu_s(self, now_s: float) -> NDArray[np.float64]:
        return np.asarray(self._offset_gpu_s) + np.asarray(self._gpus, dtype=float) * now_s


class PreemptionLoss(NamedTuple):
    """Loss of stopping a running job now."""

    work: float
    energy_j: float


class JobAges(NamedTuple):
    """Jobs that wait or run, and the summed age of all jobs so far, finished ones at their end."""

    present: int
    age_s: float


class RealisedDelay(NamedTuple):
    """Ages of the jobs that have arrived, and in the schedules of the policy's references."""

    jobs: int
    own: JobAges
    references: tuple[JobAges, ...]


@dataclass(slots=True)
class ClusterView:
    """State of a cluster at one moment, updated by a simulator or a driver, read by a policy.

    Attributes:
        jobs: all known jobs; rows of future jobs may exist but must not be read.
        free: free GPUs; copy it to plan with.
        budget_w: power budget of the whole cluster, over time; infinite without a budget.
        power_error, time_error: most by which true values may exceed estimates, as a share.
        loss: function that returns the loss of preempting a running job now.
        preemptions, resizes: number of stops and of resizes of each job, by job number.
        is_up: state of every node, by node number.
        carbon_g_per_kwh, price_per_kwh: of electricity, over time; None when unknown.
        preemption: settings of preemption. By default a stopped job keeps no progress.
        round_s: the policy is called at multiples of this time; 0 for a call at every event.
        wake_s: longest time until a sleeping GPU works, if idle GPUs sleep.
        start_latency_s, end_latency_s: time with GPUs before the work starts and after it ends.
        delay: ages of the jobs so far, next to those of the same jobs under the policy's
            references; None when unknown.
        power_w: current power of the whole cluster: measured, plus jobs that have started but do
            not work yet, plus jobs that have just finished.
    """

    cluster: Cluster
    jobs: JobTable
    queue: JobQueue
    free: FreeGpus
    running: Mapping[int, RunningJob]
    use: UserUsage
    budget_w: StepFunction
    power_error: float
    time_error: float
    loss: Callable[[RunningJob], PreemptionLoss]
    preemptions: Sequence[int]
    is_up: Sequence[bool]
    carbon_g_per_kwh: StepFunction | None = None
    price_per_kwh: StepFunction | None = None
    preemption: Preemption = field(default_factory=lambda: Preemption(Keeps.NOTHING))
    round_s: float = 0.0
    wake_s: float = 0.0
    start_latency_s: float = 0.0
    end_latency_s: float = 0.0
    resizes: Sequence[int] = ()
    now_s: float = 0.0
    delay: RealisedDelay | None = None
    power_w: float = 0.0

    def occupied_s(self, job: int, time_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return how long a waiting job occupies GPUs, with checkpoints and latencies."""
        rules = self.preemption
        if rules.pauses:
            checkpoints = np.maximum(np.ceil(time_s / rules.checkpoint_period_s) - 1, 0)
            time_s = time_s + checkpoints * rules.checkpoint_cost_s
        restart_s = rules.restart_s if self.preemptions[job] else 0.0
        return time_s + (restart_s + self.start_latency_s + self.end_latency_s)
