"""The view of a policy: queue, machines, users, power, budget, clock."""

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
    """One job on its machines.

    Attributes:
        job: its number.
        option: row of its kind's options.
        type_index, gpus: of the placement.
        nodes: (node, bit mask of its GPUs there), in the order they were taken.
        started_s: when this stretch began.
        power_w: drawn by its GPUs, as measured.
        expected_end_s: when it is believed to end, by the estimate at its start or last recap.
        work_at_start: samples to go when this stretch began.
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
        """Its work is done and its GPUs are about to be free: no longer to be stopped or capped."""
        return False


class UserUsage:
    """GPU seconds by user, running jobs included up to the moment they are asked for.

    Args:
        users: how many there are.
    """

    def __init__(self, users: int) -> None:
        # use(t) = offset + gpus * t: starting k GPUs at t adds k to the slope, -k t to the offset.
        self._offset_gpu_s = [0.0] * users
        self._gpus = [0] * users

    def start(self, user: int, gpus: int, now_s: float) -> None:
        self._offset_gpu_s[user] -= gpus * now_s
        self._gpus[user] += gpus

    def stop(self, user: int, gpus: int, now_s: float) -> None:
        """A user gives GPUs back."""
        self._offset_gpu_s[user] += gpus * now_s
        self._gpus[user] -= gpus

    def gpus(self) -> NDArray[np.int64]:
        """GPUs each user has now."""
        return np.asarray(self._gpus, dtype=np.int64)

    def gpu_s(self, now_s: float) -> NDArray[np.float64]:
        """GPU seconds each user has had up to now."""
        return np.asarray(self._offset_gpu_s) + np.asarray(self._gpus, dtype=float) * now_s


class PreemptionLoss(NamedTuple):
    """What stopping a running job now would throw away."""

    work: float
    energy_j: float


@dataclass(slots=True)
class ClusterView:
    """The state of a cluster at one moment, kept by a simulator or a driver, read by a policy.

    Attributes:
        cluster: the machines as built.
        jobs: every job known so far; columns of jobs to come may be there but are not looked at.
        queue: jobs that wait.
        free: free GPUs; copy it to plan with.
        running: job number -> what runs.
        use: GPU seconds each user has had.
        budget_w: most power the whole cluster may draw, over time; infinite without a budget.
        power_error, time_error: most that truth may exceed estimates, as a share of the estimate.
        loss: what preempting a running job now would throw away.
        preemptions: how often each job was stopped by the policy so far, by job number.
        is_up: of every node, by node number.
        carbon_g_per_kwh, price_per_kwh: of electricity, over time; None where nobody said.
        preemption: what stopping a job costs. A stopped job keeps nothing unless said otherwise.
        round_s: the policy is asked at multiples of this time only; 0 whenever something happens.
        start_latency_s, end_latency_s: how long a job has its GPUs before it works and after.
        now_s: the clock.
        power_w: what the whole cluster draws now, as measured, and what is not seen of it: jobs
            that were started and do not work yet, and those that have ended a moment ago.
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
    start_latency_s: float = 0.0
    end_latency_s: float = 0.0
    now_s: float = 0.0
    power_w: float = 0.0

    def occupied_s(self, job: int, time_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """How long a waiting job has its GPUs if it trains for so long: checkpoints, latencies."""
        rules = self.preemption
        if rules.pauses:
            checkpoints = np.maximum(np.ceil(time_s / rules.checkpoint_period_s) - 1, 0)
            time_s = time_s + checkpoints * rules.checkpoint_cost_s
        restart_s = rules.restart_s if self.preemptions[job] else 0.0
        return time_s + (restart_s + self.start_latency_s + self.end_latency_s)
