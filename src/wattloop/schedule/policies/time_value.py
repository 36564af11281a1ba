"""What Helios minimises: joules above idle, and a price for the time of jobs and of GPUs.

    cost = (p (P - P_idle) + v P_ref (1 + n k / K)) T

P - P_idle is what a placement adds to the cluster's power: idle GPUs draw theirs anyway. p is the
price of a joule now over its mean, 1 without prices. v P_ref is what a second of a job's time is
worth, P_ref being the power above idle of its own fastest placement: at v = 1 as much again as the
energy it then uses. A second on k of the cluster's K GPUs also keeps the n jobs that wait from
them, hence the last term: with a long queue GPU seconds count more than joules, with none only the
job's own time does.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.objectives import Estimates, Objective
from wattloop.schedule.policies.smoothing import full_batch, smoothed
from wattloop.schedule.view import ClusterView

__all__ = ["joule_price", "time_value", "waiting_level"]

Floats = NDArray[np.float64]
LEVELS_PER_DOUBLING, PRICES_PER_DOUBLING = 1, 4
"""How finely queues and prices are told apart: costs are kept for each level."""


@lru_cache(maxsize=256)
def time_value(
    value: float, waiting: float, gpus: int, price: float = 1.0, *, exact: bool = False
) -> Objective:
    """The objective for a queue of so many jobs on a cluster of so many GPUs.

    Args:
        value: v.
        waiting: n.
        gpus: K.
        price: p.
        exact: estimates are the truth, and need no smoothing.
    """

    def cost(estimates: Estimates) -> Floats:
        seen = estimates if exact else smoothed(estimates)
        full = full_batch(estimates.options)
        above_w = np.maximum(seen.power_w - seen.idle_w, 0.0)
        fastest = np.argmin(np.where(full, seen.time_s, np.inf), axis=-1)
        reference_w = np.take_along_axis(above_w, np.expand_dims(fastest, -1), axis=-1)
        second_w = value * reference_w * (1 + waiting * seen.gpus / gpus)
        # Estimates are off by more than batches differ; no GPU is slower with more to do at once.
        return np.where(full, (price * above_w + second_w) * seen.time_s, np.inf)

    name = f"time value {value:g} waiting {waiting:g} gpus {gpus} price {price:g} exact {exact}"
    return Objective(name, cost, degree=1)


def waiting_level(waiting: float) -> float:
    """The number of waiting jobs, rounded to one of few levels."""
    return float(waiting) if waiting <= 2 else _level(waiting, LEVELS_PER_DOUBLING)


def joule_price(view: ClusterView) -> float:
    """Carbon intensity now over its mean, else price over its mean; 1 where nobody said."""
    steps = view.carbon_g_per_kwh or view.price_per_kwh
    if steps is None:
        return 1.0
    now, mean = steps.at(view.now_s), steps.mean()
    if mean <= 0:
        return 1.0
    return _level(now / mean, PRICES_PER_DOUBLING) if now > 0 else 0.0


def _level(value: float, per_doubling: int) -> float:
    return float(2 ** (round(per_doubling * math.log2(value)) / per_doubling))
