"""Batch packing that keeps a power budget: the loop of thesis algorithm 8, over arrays."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.actions import Start
from wattloop.schedule.objectives import ENERGY, Objective
from wattloop.schedule.policies.headroom import ABOVE_IDLE, Headroom
from wattloop.schedule.queue import Columns
from wattloop.schedule.view import ClusterView

__all__ = ["packed"]

Floats = NDArray[np.float64]
Rank = Callable[[ClusterView, Columns, Floats], Floats]
LOOKS = 200
"""Jobs of a round that find nothing before the rest is not tried: they differ little in power."""


def packed(
    view: ClusterView, objective: Objective, rank: Rank, headroom: Headroom
) -> tuple[list[Start], bool]:
    """What to start, best first, each job on its best placement that fits and keeps the budget.

    Returns:
        The starts, and whether a job found GPUs but no power.
    """
    queue, free = view.queue, view.free
    if not len(queue) or not free.total:
        return [], False
    fits = np.array([free.fits(shape) for shape in queue.shapes])
    fitting = np.where(fits[:, None], queue.cost(objective), np.inf)
    enough = queue.cost(ABOVE_IDLE) <= headroom.now_w()
    best = np.where(enough, fitting, np.inf).min(axis=0)
    waiting = queue.columns()
    scores = np.where(np.isfinite(best), rank(view, waiting, best), np.inf)
    short = bool(np.any(np.isfinite(fitting.min(axis=0)) & ~np.isfinite(best)))
    order = np.lexsort((waiting.job, scores, -waiting.priority))
    free, looks, starts = free.copy(), 0, list[Start]()
    for job in waiting.job[order[np.isfinite(scores[order])]].tolist():
        estimates = queue.estimates(job)
        keeps = headroom.may_start(job, estimates)
        cost = objective.cost(estimates)
        unwanted = np.isinf(cost)
        # What the objective leaves out is better than to wait for ever.
        is_left = unwanted.any() and not (keeps & headroom.has_gpus(job) & ~unwanted).any()
        if is_left and (unwanted | ~headroom.can_ever(job, estimates)).all():
            cost = ENERGY.cost(estimates)
        cost = np.where(fits[queue.shape_of(job)], cost, np.inf)
        option = int(np.argmin(np.where(keeps, cost, np.inf)))
        short |= not keeps[int(np.argmin(cost))]
        has_one = keeps[option] and np.isfinite(cost[option])
        if has_one and free.fits(shape := queue.options(job).shape(option)):
            free.take(shape)
            starts.append(Start(job, option))
            headroom.start(job, option)
        else:  # the next round may find another placement for it
            looks += 1
        if looks == LOOKS or not free.total:
            break
    return starts, short
