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

Bools = NDArray[np.bool_]
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
    packing = _Round(view, objective, headroom, fits)
    packing.is_short = bool(
        np.any(np.isfinite(table.of_jobs(fitting.min(axis=0))) & ~np.isfinite(best))
    )
    looks, starts = 0, list[Start]()
    for job in _in_order(waiting, scores):
        option = packing.placed(job)
        if option is not None:
            starts.append(Start(job, option))
        else:  # the next round may find another placement for it
            looks += 1
        if looks == LOOKS or not packing.free.total:
            break
    return starts, packing.is_short


class _Round:
    """Jobs placed one after the other, each on the best of what those before it left.

    GPUs and power only become less in a round. What one job did not find is not looked for again
    for others that are like it: of its kind, stopped as often, and with exact estimates.

    Args:
        view: the cluster.
        objective: by what placements are chosen.
        headroom: power that is left.
        fits: which shapes of the queue had free GPUs when the round began.

    Attributes:
        free: GPUs that are left.
        is_short: a job found GPUs but no power.
    """

    def __init__(
        self, view: ClusterView, objective: Objective, headroom: Headroom, fits: Bools
    ) -> None:
        self._view, self._objective, self._headroom = view, objective, headroom
        self._fits, self.free = fits, view.free.copy()
        self.is_short = False
        self._hopeless: dict[tuple[int, int], tuple[float, float]] = {}
        self._taken: dict[tuple[int, int], tuple[float, float]] = {}
        self._has_room: dict[int, bool] = {}
        self._known: dict[int, tuple[Bools, Floats, Bools | None]] = {}

    def placed(self, job: int) -> int | None:
        """The option that a job starts on, its GPUs and its power taken; None for none."""
        queue, headroom = self._view.queue, self._headroom
        if self._is_in_vain(job):
            return None
        estimates = queue.estimates(job)
        here, cost, unwanted = self._costs(job)
        keeps = headroom.may_start(job, estimates)
        alike = (queue.kind_of[job], self._view.preemptions[job])
        if queue.is_exact and not (keeps & here).any():
            self._hopeless[alike] = headroom.hopeless(job, estimates, here)
        # What the objective leaves out is better than to wait for ever.
        if (
            unwanted is not None
            and not (keeps & headroom.has_gpus(job) & ~unwanted).any()
            and (unwanted | ~headroom.can_ever(job, estimates)).all()
        ):
            cost = np.where(here, ENERGY.cost(estimates), np.inf)
        option = int(np.argmin(np.where(keeps, cost, np.inf)))
        self.is_short |= not keeps[int(np.argmin(cost))]
        if not (keeps[option] and np.isfinite(cost[option])):
            return None
        shape = queue.options(job).shape(option)
        if not self.free.fits(shape):
            if queue.is_exact:
                self._taken[alike] = headroom.unlimited(job, estimates, here)
            return None
        self.free.take(shape)
        self._has_room = {kind: has for kind, has in self._has_room.items() if not has}
        headroom.start(job, option)
        return option

    def _is_in_vain(self, job: int) -> bool:
        """Whether another job has shown that there is nothing for this one."""
        queue = self._view.queue
        kind, work = queue.kind_of[job], queue.work(job)
        alike = (kind, self._view.preemptions[job])
        low, high = self._hopeless.get(alike, NO_WORK)
        if low <= work <= high:
            self.is_short = True
            return True
        if kind not in self._has_room:
            shapes = [(n, queue.shapes[n]) for n in np.unique(queue.shape_of(job)).tolist()]
            fits, free = self._fits, self.free
            self._has_room[kind] = any(fits[n] and free.fits(shape) for n, shape in shapes)
        most_work, most_w = self._taken.get(alike, (-1.0, 0.0))
        is_taken = work <= most_work and self._headroom.drawn_w <= most_w
        return not self._has_room[kind] or is_taken

    def _costs(self, job: int) -> tuple[Bools, Floats, Bools | None]:
        """Which options have free GPUs, their costs, and which the objective leaves out.

        Costs are infinite where GPUs are not free; of one sample where estimates are exact.
        """
        queue, objective = self._view.queue, self._objective
        is_alike = queue.is_exact and objective.degree is not None
        kind = queue.kind_of[job]
        if not is_alike or kind not in self._known:
            here = self._fits[queue.shape_of(job)]
            work = 1.0 if is_alike else queue.work(job)
            cost = objective.cost(queue.estimates_for(job, work))
            unwanted = np.isinf(cost) if np.isinf(cost).any() else None
            self._known[kind] = here, np.where(here, cost, np.inf), unwanted
        return self._known[kind]


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
