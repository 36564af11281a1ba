"""How far the residuals of microbenchmarks reach, by leaving each one out."""

import numpy as np

from wattloop.predict.models.kernels.residuals import ResidualGroup, nearness
from wattloop.predict.models.kernels.table import Floats

__all__ = ["fitted_group", "left_out_errors"]

REACHES = (0.7, 1.0, 1.5, 2.2, 3.3, 5.0)
NOISES = (0.03, 0.08, 0.2, 0.5)
"""Noise of a residual, as a share of how much residuals differ."""
SHAPES = (0.5, 2.0)
MOST_PLACES = 1500


def fitted_group(places: Floats, residuals: Floats) -> tuple[ResidualGroup | None, Floats]:
    """The process whose lengths predict left-out samples best, and its errors on them.

    No process (None) when it does not predict better than nothing.
    """
    if len(places) > MOST_PLACES:
        places, residuals = places[:MOST_PLACES], residuals[:MOST_PLACES]
    nothing = _loss(residuals)
    best, best_loss = None, 0.98 * nothing
    for reach in REACHES:
        lengths = np.full(places.shape[1], reach)
        for noise in NOISES:
            loss = _loss(left_out_errors(places / lengths, residuals, noise))
            if loss < best_loss:
                best, best_loss = (lengths, noise), loss
    if best is None:
        return None, residuals
    lengths, noise = best
    for feature in range(places.shape[1]):
        if np.ptp(places[:, feature]) == 0:
            continue
        for shape in SHAPES:
            while True:
                tried = lengths.copy()
                tried[feature] *= shape
                if not 0.2 < tried[feature] < 40:
                    break
                loss = _loss(left_out_errors(places / tried, residuals, noise))
                if loss >= 0.995 * best_loss:
                    break
                lengths, best_loss = tried, loss
    kernel = nearness(places / lengths, places / lengths)
    weights: Floats = np.linalg.solve(kernel + noise**2 * np.eye(len(places)), residuals)
    errors = left_out_errors(places / lengths, residuals, noise)
    return ResidualGroup(places, weights, lengths), errors


def left_out_errors(places: Floats, residuals: Floats, noise: float) -> Floats:
    """Residual of each sample less what all others say of it (closed form)."""
    inverse = np.linalg.inv(nearness(places, places) + noise**2 * np.eye(len(places)))
    errors: Floats = (inverse @ residuals) / np.diag(inverse)
    return errors


def _loss(errors: Floats) -> float:
    """Between mean and square: large errors count, a few outliers do not rule."""
    return float(np.mean(np.sqrt(0.05**2 + errors**2)))
