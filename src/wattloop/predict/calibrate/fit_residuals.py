"""How far the residuals of microbenchmarks reach, by leaving each one out."""

from typing import NamedTuple

import numpy as np

from wattloop.predict.models.kernels.residuals import ResidualGroup, nearness
from wattloop.predict.models.kernels.table import Floats

__all__ = ["fitted_group", "left_out_errors"]

REACHES = (0.7, 1.2, 2.0, 3.3, 5.5, 9.0)
NOISES = (0.03, 0.08, 0.2, 0.4, 0.8)
"""Noise of a residual, as a share of how much residuals differ."""
SHAPES = (0.6, 1.7)
SHORTEST, LONGEST = 0.2, 60.0
ROUNDS = 2


class _Trial(NamedTuple):
    loss: float
    noise: float
    errors: Floats


def fitted_group(places: Floats, residuals: Floats) -> tuple[ResidualGroup | None, Floats]:
    """The process whose lengths predict left-out samples best, and its errors on them.

    No process (None) when it does not predict better than nothing.
    """
    best, lengths = None, np.ones(places.shape[1])
    for reach in REACHES:
        even = np.full(places.shape[1], reach)
        trial = _tried(places / even, residuals)
        if best is None or trial.loss < best.loss:
            best, lengths = trial, even
    if best is None or best.loss > 0.98 * _loss(residuals):
        return None, residuals
    for _ in range(ROUNDS):
        before = best.loss
        for feature in range(places.shape[1]):
            if np.ptp(places[:, feature]) > 0:
                best, lengths = _stretched(places, residuals, best, lengths, feature)
        if best.loss > 0.995 * before:
            break
    kernel = nearness(places / lengths, places / lengths)
    weights = np.asarray(
        np.linalg.solve(kernel + best.noise**2 * np.eye(len(places)), residuals), dtype=np.float64
    )
    return ResidualGroup(places, weights, lengths), best.errors


def left_out_errors(places: Floats, residuals: Floats, noise: float) -> Floats:
    """Residual of each sample less what all others say of it (closed form)."""
    inverse = np.linalg.inv(nearness(places, places) + noise**2 * np.eye(len(places)))
    errors: Floats = (inverse @ residuals) / np.diag(inverse)
    return errors


def _stretched(
    places: Floats, residuals: Floats, best: _Trial, lengths: Floats, feature: int
) -> tuple[_Trial, Floats]:
    """The length of one feature, shorter or longer as long as that helps."""
    for shape in SHAPES:
        while True:
            tried = lengths.copy()
            tried[feature] *= shape
            if not SHORTEST < tried[feature] < LONGEST:
                break
            trial = _tried(places / tried, residuals)
            if trial.loss >= 0.998 * best.loss:
                break
            best, lengths = trial, tried
    return best, lengths


def _tried(places: Floats, residuals: Floats) -> _Trial:
    """The best noise for these places: one decomposition serves them all."""
    values, vectors = np.linalg.eigh(nearness(places, places))
    turned, squared = vectors.T @ residuals, vectors**2
    trials = []
    for noise in NOISES:
        inverse = 1 / (np.maximum(values, 0.0) + noise**2)
        errors = (vectors @ (inverse * turned)) / (squared @ inverse)
        trials.append(_Trial(_loss(errors), noise, errors))
    return min(trials, key=lambda trial: trial.loss)


def _loss(errors: Floats) -> float:
    """Between mean and square: large errors count, a few outliers do not rule."""
    return float(np.mean(np.sqrt(0.05**2 + errors**2)))
