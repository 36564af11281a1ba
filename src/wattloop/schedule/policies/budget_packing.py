"""Batch packing that keeps a power budget: the loop of thesis algorithm 8, over arrays."""

from collections.abc import Callable, Iterator

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
FIRST = 256
NO_WORK = (np.inf, -np.inf)
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
    table = queue.table(objective)
    fitting = np.where(fits[:, None], table.costs, np.inf)
    enough = queue.table(ABOVE_IDLE).costs <= headroom.now_w()
    best = table.of_jobs(np.where(enough, fitting, np.inf).min(axis=0))
    waiting = queue.columns()
    scores = np.where(np.isfinite(best), rank(view, waiting, best), np.inf)
    short = bool(np.any(np.isfinite(table.of_jobs(fitting.min(axis=0))) & ~np.isfinite(best)))
    free, looks, starts = free.copy(), 0, list[Start]()
    hopeless: dict[tuple[int, int], tuple[float, float]] = {}
    for job in _in_order(waiting, scores):
        alike = (queue.kind_of[job], view.preemptions[job])
        low, high = hopeless.get(alike, NO_WORK)
        if low <= queue.work(job) <= high:
            looks, short = looks + 1, True
            if looks == LOOKS:
                break
            continue
        estimates = queue.estimates(job)
        here = fits[queue.shape_of(job)]
        keeps = headroom.may_start(job, estimates)
        if queue.is_exact and not (keeps & here).any():
            hopeless[alike] = headroom.hopeless(job, estimates, here)
        cost = objective.cost(estimates)
        unwanted = np.isinf(cost)
        # What the objective leaves out is better than to wait for ever.
        is_left = unwanted.any() and not (keeps & headroom.has_gpus(job) & ~unwanted).any()
        if is_left and (unwanted | ~headroom.can_ever(job, estimates)).all():
            cost = ENERGY.cost(estimates)
        cost = np.where(here, cost, np.inf)
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


def _in_order(waiting: Columns, scores: Floats) -> Iterator[int]:
    """Jobs with a score: higher priority first, then lower score, then who came first.

    The first few are found without sorting all, as most rounds look at no more.
    """
    rows = np.flatnonzero(np.isfinite(scores))
    first = rows
    if len(rows) > 4 * FIRST and waiting.priority[rows].min() == waiting.priority[rows].max():
        edge = np.partition(scores[rows], FIRST)[FIRST]
        first, rows = rows[scores[rows] <= edge], rows[scores[rows] > edge]
    else:
        rows = rows[:0]
    for part in (first, rows):
        keys = (waiting.job[part], scores[part], -waiting.priority[part])
        yield from waiting.job[part[np.lexsort(keys)]].tolist()
