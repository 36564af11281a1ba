"""Sense out of estimates that are each off by themselves: what placements have in common.

Time and power of a job are nearly products: of a power of the number of GPUs, a factor for the
batch and one for the cap, on each GPU type. An error that is drawn anew for each placement is not.
So the logarithms are projected onto sums of such terms (least squares): errors of 72 placements
then share 9 terms, and what is left of them is about a third; of how many GPUs are best, where few
seconds decide, much less. Never used where a promise is made: deadlines and budgets take each
estimate at its worst.
"""

from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from wattloop.schedule.estimates.oracle import PlacementOptions
from wattloop.schedule.objectives import Estimates

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
