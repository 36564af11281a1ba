"""Sense out of estimates that are each off by themselves: what placements have in common.

Time and power of a job are nearly products: of a power of the number of GPUs, a factor for the
batch and one for the cap, on each GPU type. An error that is drawn anew for each placement is
not.
So the logarithms are projected onto sums of such terms (least squares): errors of 72 placements
then share 9 terms, and what is left of them is about a third; of how many GPUs are best, where
few
seconds decide, much less. Never used where a promise is made: deadlines and budgets take each
estimate at its worst.
"""

import math
from functools import lru_cache
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.estimates.oracle import PlacementOptions
from wattloop.schedule.objectives import Estimates, PlacementObjective
from wattloop.schedule.view import ClusterView

Floats = NDArray[np.float64]
_projections: WeakKeyDictionary[PlacementOptions, Floats] = WeakKeyDictionary()
_full: WeakKeyDictionary[PlacementOptions, NDArray[np.bool_]] = WeakKeyDictionary()


def smoothed(estimates: Estimates) -> Estimates:
    """The estimates with what no other placement bears out taken away."""
    projection = _projection(estimates.options)
    return estimates._replace(
        time_s=_projected(estimates.time_s, projection),
        power_w=_projected(estimates.power_w, projection),
    )


def _projected(values: Floats, projection: Floats) -> Floats:
    """The nearest products; a job with a 0 among its values has no logarithms, and keeps them."""
    has_zero = ~np.all(values > 0, axis=-1, keepdims=True)
    found = np.exp(np.log(np.where(has_zero, 1.0, values)) @ projection)
    return np.where(has_zero, values, found)


def full_batch(options: PlacementOptions) -> NDArray[np.bool_]:
    """Which placements have the largest batch that their machines allow."""
    if options not in _full:
        shapes = _codes(options.type_index, options.gpus, options.spread)
        most = np.zeros(int(shapes.max(initial=-1)) + 1, dtype=np.int64)
        np.maximum.at(most, shapes, options.batch)
        _full[options] = options.batch == most[shapes]
    return _full[options]


def _projection(options: PlacementOptions) -> Floats:
    if options not in _projections:
        types = _columns(options.type_index)
        terms = (
            types * np.log(options.gpus)[:, None],
            _columns(options.type_index, options.spread),
            _columns(options.type_index, options.batch),
            _columns(options.type_index, options.cap_w),
        )
        design = np.hstack(terms)
        _projections[options] = np.asarray(design @ np.linalg.pinv(design)).T
    return _projections[options]


def _columns(*columns: NDArray[np.generic]) -> Floats:
    """A column for each number of `_codes`: 1 in the rows that have it."""
    codes = _codes(*columns)
    found: Floats = np.eye(int(codes.max()) + 1)[codes]
    return found


def _codes(*columns: NDArray[np.generic]) -> NDArray[np.int64]:
    """Rows that are alike have the same number, from 0."""
    _, codes = np.unique(np.stack(columns, axis=1).astype(float), axis=0, return_inverse=True)
    return np.asarray(codes, dtype=np.int64).reshape(-1)


# What Helios minimises: joules above idle, and a price for the time of jobs and of GPUs.
#
#     cost = (p (P - P_idle) + v P_ref (w^(1/2) + c w n^(3/4) k / K)) T
#
# P - P_idle is what a placement adds to the cluster's power: idle GPUs draw theirs anyway. p is
# the
# price of a joule now over its mean, 1 without prices. v P_ref is what a second of a job's time is
# worth, P_ref being the power above idle of its own fastest placement: at v = 1 as much again as
# the
# energy it then uses. w is what a GPU of that type is worth, its power limit over the mean of all:
# who takes a fast one leaves a slow one to those who come next. Nobody may come, so that without a
# queue only its root counts. A second on k of the cluster's K GPUs also keeps the n jobs that wait
# from them; less than each, as the last of many wait for those before them anyway: with a long
# queue
# GPU seconds count more than joules, with none only the job's own time does.

WAITING_PRICE, WAITING_EXPONENT = 1.1, 0.75
"""c, and the exponent of n: what a GPU second is charged for jobs that wait (ADR 0033)."""
NEAR = 1e-6
"""Share of its cost by which caps of one placement differ where their order is by energy."""
EACH_UP_TO, LEVELS_PER_DOUBLING, PRICES_PER_DOUBLING = 4, 1, 4
"""How finely queues and prices are told apart: costs are kept for each level."""


@lru_cache(maxsize=256)
def time_value(
    value: float,
    waiting: float,
    gpus: int,
    price: float = 1.0,
    *,
    worth: tuple[float, ...] = (),
    exact: bool = False,
    max_delay: float | None = None,
) -> PlacementObjective:
    """The objective for a queue of so many jobs on a cluster of so many GPUs.

    Args:
        value: v.
        waiting: n.
        gpus: K.
        price: p.
        worth: w of each GPU type, by its index; 1 for all where not given.
        exact: estimates are the truth, and need no smoothing.
        max_delay: instead of the cap of least cost, the one of least energy that takes no longer
            than so much more of the time at full power.
    """

    def cost(estimates: Estimates) -> Floats:
        seen = estimates if exact else smoothed(estimates)
        full = full_batch(estimates.options)
        above_w = np.maximum(seen.power_w - seen.idle_w, 0.0)
        w = np.array(worth)[estimates.options.type_index] if worth else 1.0
        others = WAITING_PRICE * w * waiting**WAITING_EXPONENT * seen.gpus / gpus
        second_w = value * _fastest_w(seen, above_w, full) * (np.sqrt(w) + others)
        # Estimates are off by more than batches differ; no GPU is slower with more to do at once.
        found = np.where(full, (price * above_w + second_w) * seen.time_s, np.inf)
        if max_delay is None:
            return found
        return _thriftiest(found, seen, above_w, max_delay)

    name = (
        f"time value {value:g} waiting {waiting:g} gpus {gpus} price {price:g} worth {worth} "
        f"exact {exact} max delay {max_delay}"
    )
    return PlacementObjective(name, cost, degree=1)


@lru_cache(maxsize=2)
def reference_w(*, exact: bool) -> PlacementObjective:
    """P_ref, alike on all placements of a job: power above idle of its fastest one."""

    def found(estimates: Estimates) -> Floats:
        seen = estimates if exact else smoothed(estimates)
        above_w = np.maximum(seen.power_w - seen.idle_w, 0.0)
        fastest_w = _fastest_w(seen, above_w, full_batch(estimates.options))
        return np.broadcast_to(fastest_w, above_w.shape)

    return PlacementObjective(f"reference power exact {exact}", found, degree=0)


def gpu_worth(cluster: Cluster) -> tuple[float, ...]:
    """Power limit of a GPU of each type over the mean of all GPUs."""
    limits_w = [kind.tdp_w for kind in cluster.types]
    total_w = sum(w * gpus for w, gpus in zip(limits_w, cluster.gpus_by_type, strict=True))
    return tuple(limit_w * cluster.gpus / total_w for limit_w in limits_w)


def waiting_level(waiting: float) -> float:
    """The number of waiting jobs, rounded to one of few levels."""
    return float(waiting) if waiting <= EACH_UP_TO else _level(waiting, LEVELS_PER_DOUBLING)


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


def _thriftiest(cost: Floats, seen: Estimates, above_w: Floats, max_delay: float) -> Floats:
    """Costs by which the thriftiest cap within the delay is the best of its placement.

    The placement itself is chosen by its cost at the fastest cap.
    """
    shapes = np.array(seen.options.shapes(), dtype=float)
    begins = np.flatnonzero(np.r_[True, np.any(shapes[1:] != shapes[:-1], axis=1)])
    lengths = np.diff(np.r_[begins, len(shapes)])

    def least(values: Floats) -> Floats:
        of_shape = np.minimum.reduceat(values, begins, axis=-1)
        found: Floats = np.repeat(of_shape, lengths, axis=-1)
        return found

    is_full = np.isfinite(cost)
    time_s = np.where(is_full, seen.time_s, np.inf)
    fastest_s = least(time_s)
    fastest_cost = least(np.where(time_s <= fastest_s, cost, np.inf))
    energy_j = np.where(time_s <= (1 + max_delay) * fastest_s, above_w * time_s, np.inf)
    # By energy within a placement; all of them near the cost of its fastest cap.
    more = energy_j / np.maximum(least(energy_j), 1e-12) - 1
    return np.where(is_full, fastest_cost * (1 + NEAR * np.minimum(more, 1e3)), np.inf)


def _fastest_w(seen: Estimates, above_w: Floats, full: NDArray[np.bool_]) -> Floats:
    fastest = np.argmin(np.where(full, seen.time_s, np.inf), axis=-1)
    found: Floats = np.take_along_axis(above_w, np.expand_dims(fastest, -1), axis=-1)
    return found
