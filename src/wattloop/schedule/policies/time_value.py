"""Helios's cost: joules above idle, and a price for the time of jobs and GPUs.

    cost = (p (P - P_idle) + v P_ref (w^(1/2) + c w n^(3/4) k / K)) T

P - P_idle is the power that a placement adds to the cluster. p is the current price of a joule over
its mean, 1 without prices. v P_ref is the value of a second of a job's time; P_ref is the power
above idle of its own fastest placement, so at v = 1 time is worth as much as the energy used then.
w is the worth of a GPU of that type, its power limit over the mean of all: a job on a fast GPU
leaves a slow one to the next job. Without a queue there may be no next job, so only the root of w
counts. A second on k of the cluster's K GPUs also delays the n waiting jobs, by less than a second
each, because the last of many wait for the others anyway. With a long queue GPU seconds count more
than joules; with an empty queue only the job's own time counts.

Smoothing of estimates with independent errors: time and power of a job are nearly products of a
power of the GPU count, a factor for the batch and one for the cap, on each GPU type. Independent
errors of placements are not. So logarithms are projected onto sums of such terms (least squares):
the errors of 72 placements share 9 terms, and about a third of them remains. Deadlines and budgets
do not use smoothed estimates; they take each estimate with its largest error.
"""

import math
from dataclasses import replace
from functools import lru_cache
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.cluster.cluster import Cluster
from wattloop.schedule.estimates.oracle import PlacementOptions
from wattloop.schedule.objectives import Estimates, PlacementObjective
from wattloop.schedule.step_function import StepFunction
from wattloop.schedule.view import ClusterView

Floats = NDArray[np.float64]
_projections: WeakKeyDictionary[PlacementOptions, Floats] = WeakKeyDictionary()
_full: WeakKeyDictionary[PlacementOptions, NDArray[np.bool_]] = WeakKeyDictionary()


def smooth(estimates: Estimates) -> Estimates:
    """Return the estimates without the part of the errors that other placements contradict."""
    projection = _projection(estimates.options)
    return estimates._replace(
        time_s=_projected(estimates.time_s, projection),
        power_w=_projected(estimates.power_w, projection),
    )


def _projected(values: Floats, projection: Floats) -> Floats:
    """Return the nearest products; values of a job with a 0 have no logarithms and stay."""
    has_zero = ~np.all(values > 0, axis=-1, keepdims=True)
    found = np.exp(np.log(np.where(has_zero, 1.0, values)) @ projection)
    return np.where(has_zero, values, found)


def full_batch(options: PlacementOptions) -> NDArray[np.bool_]:
    """Return the placements with the largest batch of their shape."""
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
    """Return indicator columns of the codes of `_codes`."""
    codes = _codes(*columns)
    found: Floats = np.eye(int(codes.max()) + 1)[codes]
    return found


def _codes(*columns: NDArray[np.generic]) -> NDArray[np.int64]:
    """Number the distinct rows, from 0."""
    _, codes = np.unique(np.stack(columns, axis=1).astype(float), axis=0, return_inverse=True)
    return np.asarray(codes, dtype=np.int64).reshape(-1)


WAITING_PRICE, WAITING_EXPONENT = 1.1, 0.75
"""c, and the exponent of n: price of a GPU second for waiting jobs (ADR 0033)."""
NEAR = 1e-6
"""Relative difference of costs between caps of one placement that are ordered by energy."""
EACH_UP_TO, LEVELS_PER_DOUBLING, PRICES_PER_DOUBLING = 4, 1, 4
"""Resolution of queue lengths and prices: costs are cached for each level."""


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
    resting_w: tuple[float, ...] = (),
) -> PlacementObjective:
    """Return the objective for a queue of this length on a cluster of this size.

    Args:
        value: v.
        waiting: n.
        gpus: K.
        price: p.
        worth: w of each GPU type, by its index; by default 1.
        exact: estimates are exact and need no smoothing.
        max_delay: choose the cap of least energy that takes at most this share longer than full
            power, instead of the cap of least cost.
        resting_w: power of a GPU of each type that no job uses, by its index; by default idle
            power.
    """

    def cost(estimates: Estimates) -> Floats:
        seen = estimates if exact else smooth(estimates)
        full = full_batch(estimates.options)
        idle_w = seen.idle_w
        if resting_w:
            idle_w = np.array(resting_w)[estimates.options.type_index] * seen.gpus
        above_w = np.maximum(seen.power_w - idle_w, 0.0)
        w = np.array(worth)[estimates.options.type_index] if worth else 1.0
        others = WAITING_PRICE * w * waiting**WAITING_EXPONENT * seen.gpus / gpus
        second_w = value * _fastest_w(seen, above_w, full) * (np.sqrt(w) + others)
        # Estimates differ more than batches do; a larger batch is never slower on a GPU.
        found = np.where(full, (price * above_w + second_w) * seen.time_s, np.inf)
        if max_delay is None:
            return found
        return _thriftiest(found, seen, above_w, max_delay)

    name = (
        f"time value {value:g} waiting {waiting:g} gpus {gpus} price {price:g} worth {worth} "
        f"exact {exact} max delay {max_delay} resting {resting_w}"
    )
    return PlacementObjective(name, cost, degree=1)


@lru_cache(maxsize=2)
def reference_w(*, exact: bool) -> PlacementObjective:
    """Return P_ref as an objective: power above idle of a job's fastest placement."""

    def found(estimates: Estimates) -> Floats:
        seen = estimates if exact else smooth(estimates)
        above_w = np.maximum(seen.power_w - seen.idle_w, 0.0)
        fastest_w = _fastest_w(seen, above_w, full_batch(estimates.options))
        return np.broadcast_to(fastest_w, above_w.shape)

    return PlacementObjective(f"reference power exact {exact}", found, degree=0)


def gpu_worth(cluster: Cluster) -> tuple[float, ...]:
    """Return the power limit of a GPU of each type over the mean of all GPUs."""
    limits_w = [kind.tdp_w for kind in cluster.types]
    total_w = sum(w * gpus for w, gpus in zip(limits_w, cluster.gpus_by_type, strict=True))
    return tuple(limit_w * cluster.gpus / total_w for limit_w in limits_w)


def waiting_level(waiting: float) -> float:
    """Round the number of waiting jobs to one of few levels."""
    return float(waiting) if waiting <= EACH_UP_TO else _level(waiting, LEVELS_PER_DOUBLING)


def joule_price(view: ClusterView) -> float:
    """Return the carbon intensity over its mean, else the price over its mean, else 1.

    Where prices fall below 0, joules count nothing: no energy is used to be paid for it. The mean
    is that of the prices with 0 in their place.
    """
    steps = view.carbon_g_per_kwh or view.price_per_kwh
    if steps is None:
        return 1.0
    now, mean = steps.at(view.now_s), _mean_paid(steps)
    if now > 0:
        return _level(now / mean, PRICES_PER_DOUBLING)
    return 0.0 if now < 0 or mean > 0 else 1.0


@lru_cache(maxsize=16)
def _mean_paid(steps: StepFunction) -> float:
    return replace(steps, values=tuple(max(value, 0.0) for value in steps.values)).mean()


def _level(value: float, per_doubling: int) -> float:
    return float(2 ** (round(per_doubling * math.log2(value)) / per_doubling))


def _thriftiest(cost: Floats, seen: Estimates, above_w: Floats, max_delay: float) -> Floats:
    """Return costs by which the cap of least energy within the delay is the best of its placement.

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
    energy_j = np.where(time_s <= (1 + max_delay) * fastest_s, above_w * seen.time_s, np.inf)
    # ordered by energy within a placement, all near the cost of its fastest cap
    more = energy_j / np.maximum(least(energy_j), 1e-12) - 1
    return np.where(is_full, fastest_cost * (1 + NEAR * np.minimum(more, 1e3)), np.inf)


def _fastest_w(seen: Estimates, above_w: Floats, full: NDArray[np.bool_]) -> Floats:
    fastest = np.argmin(np.where(full, seen.time_s, np.inf), axis=-1)
    found: Floats = np.take_along_axis(above_w, np.expand_dims(fastest, -1), axis=-1)
    return found
