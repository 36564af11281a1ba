"""Robust non-linear least squares in logarithms, small enough to need no library."""

from collections.abc import Callable

import numpy as np

from wattloop.predict.models.kernels.table import Floats

__all__ = ["minimise"]

STEP = 1e-4


def minimise(
    residuals: Callable[[Floats], Floats],
    start: Floats,
    prior: Floats,
    *,
    soft: float = 0.1,
    rounds: int = 60,
) -> Floats:
    """Parameters that make `residuals` small, pulled towards `start` as strongly as `prior` says.

    Levenberg-Marquardt on the soft-L1 loss, 2 s^2 (sqrt(1 + (r/s)^2) - 1): residuals beyond
    `soft` count linearly. `prior` is the standard deviation, in units of the parameters, that a
    departure from `start` may have where residuals have one of `soft`.
    """
    x = start.copy()
    damping = 1e-3
    pull = soft / prior

    def cost(at: Floats, r: Floats) -> float:
        robust = 2 * soft**2 * (np.sqrt(1 + (r / soft) ** 2) - 1)
        return float(robust.sum() + ((pull * (at - start)) ** 2).sum())

    r = residuals(x)
    best = cost(x, r)
    for _ in range(rounds):
        jacobian = np.stack(
            [(residuals(x + STEP * unit) - r) / STEP for unit in np.eye(len(x))], axis=1
        )
        weight = 1 / np.sqrt(1 + (r / soft) ** 2)
        normal = (jacobian * weight[:, None]).T @ jacobian + np.diag(pull**2)
        gradient = jacobian.T @ (weight * r) + pull**2 * (x - start)
        improved = False
        for _ in range(8):
            move = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -gradient)
            trial = x + np.clip(move, -1.0, 1.0)
            trial_r = residuals(trial)
            trial_cost = cost(trial, trial_r)
            if trial_cost < best:
                improved = best - trial_cost > 1e-7 * best
                x, r, best = trial, trial_r, trial_cost
                damping = max(damping / 5, 1e-9)
                break
            damping *= 4
        if not improved:
            break
    return x
