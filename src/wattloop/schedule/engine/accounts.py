"""What each job has had and cost, by job number."""

import math
from array import array

__all__ = ["Accounts"]


class Accounts:
    """Columns over all jobs, in arrays: a million jobs take 50 MB.

    Args:
        jobs: how many there are.
        types: GPU types of the cluster.

    Attributes:
        started_s, finished_s: first start and end; NaN for never.
        energy_j: drawn by its GPUs while it had them, up to its last stop.
        wasted_j: the part of it whose work was lost or that went into restarts.
        gpu_s: GPU seconds.
        preemptions, interruptions: how often it was stopped, by the policy and by a dead node.
        busy_gpu_s: GPU seconds of work by GPU type.
    """

    def __init__(self, jobs: int, types: int) -> None:
        self.started_s = array("d", [math.nan]) * jobs
        self.finished_s = array("d", [math.nan]) * jobs
        self.energy_j = array("d", [0.0]) * jobs
        self.wasted_j = array("d", [0.0]) * jobs
        self.gpu_s = array("d", [0.0]) * jobs
        self.preemptions = array("l", [0]) * jobs
        self.interruptions = array("l", [0]) * jobs
        self.busy_gpu_s = [0.0] * types
