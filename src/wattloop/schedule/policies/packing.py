"""Batch packing (thesis 5.3.2.4): score every waiting job once, then start jobs in that order.

A policy defines how a placement is chosen (`objective`) and how jobs are ordered (`rank`).
"""

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from wattloop.core.errors import ConfigError
from wattloop.schedule.actions import Action, Start
from wattloop.schedule.objectives import PlacementObjective
from wattloop.schedule.policies.base import Policy
from wattloop.schedule.queue import Columns, RankedOption
from wattloop.schedule.view import ClusterView

TIME_AGE_WEIGHT = 1.0
"""Seconds of score per second of waiting: jobs start in the order of arrival + run time."""
EDP_AGE_WEIGHT_PER_S = 1 / 600
"""Ten minutes of waiting halve a job's energy-delay product."""


def weight(name: str, value: float) -> float:
    """Validate a parameter that is a weight.

    Raises:
        ConfigError: it is negative, infinite or not a number.
    """
    if not (0 <= value < math.inf):
        raise ConfigError(f"{name} is {value:g}; give a number from 0 up")
    return float(value)


def share(name: str, value: float | str) -> float:
    """Parse a parameter that is a share (`0.1`) or a percentage (`10%`).

    Raises:
        ConfigError: it is neither, or not from 0 to 1.
    """
    text = str(value).strip()
    try:
        found = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        found = math.nan
    if not 0 <= found <= 1:
        raise ConfigError(f"{name} is {value}; give a share such as 0.1, or 10%")
    return found


Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class PackingPolicy(Policy):
    """Policy that starts each job on its best placement that fits, in the order of `rank`.

    Order of jobs: higher priority, then lower tier, then lower score, then earlier arrival. Tiers
    are separate from the score, so that no score can outweigh them. A job whose placement was taken
    in this round waits for the next one, as in the thesis.
    """

    objective: PlacementObjective

    @abstractmethod
    def rank(self, view: ClusterView, waiting: Columns, cost: Floats) -> Floats:
        """Return the score of every waiting job, lowest first, by the cost of its best placement.

        The cost is infinite if no placement is free; the scores of such jobs are ignored. A job
        with an infinite score stays in the queue.
        """

    def tier(self, view: ClusterView, waiting: Columns) -> Ints | None:
        """Return the tier of every waiting job, lowest first; None if all are equal."""
        del view, waiting
        return None

    def decide(self, view: ClusterView) -> Sequence[Action]:
        queue = view.queue
        if len(queue) == 1:
            placed = queue.placed_by(self.objective, job := next(iter(queue.waiting)))
            if placed is not None:
                return self._start_the_only_one(view, job, placed)
        fitting = [n for n, shape in enumerate(queue.shapes) if view.free.fits(shape)]
        if not fitting or not len(queue):
            return ()
        chosen, best = _best_rows(queue.cost(self.objective), fitting)
        waiting = queue.columns()
        with np.errstate(invalid="ignore"):  # infinite costs of jobs without a free placement
            scores = np.where(best < np.inf, self.rank(view, waiting, best), np.inf)
        tiers = _tiers(waiting.priority, self.tier(view, waiting))
        if np.isnan(scores.min()):
            raise self._no_number(int(waiting.job[np.isnan(scores)].min()))
        free, starts = view.free.copy(), []
        while (row := _first(scores, tiers, waiting.job)) is not None:
            shape = queue.shapes[chosen[row]]
            free.take(shape)
            job = int(waiting.job[row])
            starts.append(Start(job, queue.best_option(self.objective, job, shape)))
            scores[row] = np.inf
            left = [n for n in fitting if free.fits(queue.shapes[n])]
            if not left:
                break
            if len(left) < len(fitting):
                fits = np.zeros(len(queue.shapes), dtype=bool)
                fits[left] = True
                scores[~fits[chosen]] = np.inf
                fitting = left
        return starts

    def _start_the_only_one(
        self, view: ClusterView, job: int, placed: Iterable[RankedOption]
    ) -> Sequence[Action]:
        """Start a single waiting job on its first placement that fits."""
        fits = view.free.fits
        for found in placed:
            if fits(found.shape):
                cost = view.queue.cost_of(self.objective, job, found)
                if cost == math.inf:
                    return ()
                score = float(self.rank(view, view.queue.columns(), np.array([cost]))[0])
                if math.isnan(score):
                    raise self._no_number(job)
                return (Start(job, found.option),) if score < math.inf else ()
        return ()

    def _no_number(self, job: int) -> ConfigError:
        return ConfigError(f"policy {self.name}: the score of job {job} is not a number")


def _best_rows(costs: Floats, rows: Sequence[int]) -> tuple[Ints, Floats]:
    """Return the row of least cost for each job, and that cost; the first of equals.

    Row by row, because numpy's argmin over the short axis takes four times as long.
    """
    best = costs[rows[0]].copy()
    chosen = np.full(len(best), rows[0])
    for row in rows[1:]:
        better = costs[row] < best
        chosen[better] = row
        np.minimum(best, costs[row], out=best)
    return chosen, best


def _tiers(priority: Ints, tier: Ints | None) -> Ints | None:
    """Combine priority and tier into one number, lowest first; None if all jobs are equal."""
    if priority.min() == priority.max():
        return tier
    if tier is None:
        return -priority
    return -priority * (int(tier.max()) - int(tier.min()) + 1) + tier


def _first(scores: Floats, tiers: Ints | None, jobs: Ints) -> int | None:
    """Return the row of the next job; None if none is left."""
    rows = np.flatnonzero(scores == scores.min())
    if scores[rows[0]] == np.inf:
        return None
    if tiers is not None:
        left = np.flatnonzero(scores < np.inf)
        mine = left[tiers[left] == tiers[left].min()]
        rows = mine[scores[mine] == scores[mine].min()]
    return int(rows[np.argmin(jobs[rows])])
