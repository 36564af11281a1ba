"""All that a policy sees: the queue, the machines, the people, the power, the clock."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.free_gpus import FreeGpus
from wattloop.schedule.jobs.table import JobTable
from wattloop.schedule.preemption import Keeps, Preemption
from wattloop.schedule.queue import Queue
from wattloop.schedule.running import Running
from wattloop.schedule.steps import Steps
from wattloop.schedule.use import Use

__all__ = ["ClusterView", "Loss"]


class Loss(NamedTuple):
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
    queue: Queue
    free: FreeGpus
    running: Mapping[int, Running]
    use: Use
    budget_w: Steps
    power_error: float
    time_error: float
    loss: Callable[[Running], Loss]
    preemptions: Sequence[int]
    is_up: Sequence[bool]
    carbon_g_per_kwh: Steps | None = None
    price_per_kwh: Steps | None = None
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
