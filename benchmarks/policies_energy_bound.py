"""Lower bound of the energy for the same jobs: a linear program, per seed.

Whatever runs, idle power is drawn all the time. Above it, each job takes what its placement draws
more than idle, for as long as it runs. Which placements, so that the sum is least and GPU hours of
each type suffice? Waiting, packing, deadlines and the order of jobs are forgotten, so that no
schedule needs less. Jobs may be divided among placements, so that no schedule that moves or resizes
running jobs needs less either.
"""

import numpy as np

from wattloop.schedule.cluster import Cluster
from wattloop.schedule.estimates.oracle import Oracle
from wattloop.schedule.jobs import JobTable

__all__ = ["least_kwh"]

JOULES_PER_KWH = 3.6e6


def least_kwh(
    jobs: JobTable,
    share: float,
    cluster: Cluster,
    truth: Oracle,
    span_s: float,
    *,
    sleeps: bool = False,
) -> float:
    """Energy of the cluster over `span_s` in which that share of all jobs is done.

    Args:
        jobs: with all power limits that they may have.
        share: of the jobs of each kind, as many as the compared policy finished.
        cluster: where.
        truth: time and power.
        span_s: how long.
        sleeps: a GPU without a job draws its deepest sleep's power, and wakes for nothing.
    """
    from scipy.optimize import linprog

    idle_w = np.array(cluster.resting_w if sleeps else [each.idle_w for each in cluster.types])
    cost, gpu_s, of_kind = [], [], []
    for kind, each in enumerate(jobs.kinds):
        options = truth.options(each)
        time_s = options.sample_s * float(jobs.work[jobs.kind == kind].sum()) * share
        above_w = options.power_w - idle_w[options.type_index] * options.gpus
        busy = np.zeros((len(cluster.types), len(options)))
        busy[options.type_index, np.arange(len(options))] = options.gpus * time_s
        cost.append(above_w * time_s)
        gpu_s.append(busy)
        of_kind.append(np.full(len(options), kind))
    kinds = np.concatenate(of_kind)
    found = linprog(
        c=np.concatenate(cost),
        A_ub=np.hstack(gpu_s),
        b_ub=np.array(cluster.gpus_by_type) * span_s,
        A_eq=(kinds == np.arange(len(jobs.kinds))[:, None]).astype(float),
        b_eq=np.ones(len(jobs.kinds)),
    )
    if found.status != 0:
        raise RuntimeError(f"the bound on energy was not found: {found.message}")
    always_w = float(idle_w @ np.array(cluster.gpus_by_type)) if sleeps else cluster.idle_w
    return float((found.fun + always_w * span_s) / JOULES_PER_KWH)
