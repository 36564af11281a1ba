"""How good a linear fit is: F tests, and how well it does on rows it has not seen."""

import math

import numpy as np

from wattloop.analyze.table import Floats

__all__ = ["FOLDS", "cross_validated_r2", "f_test", "residual_sum"]

FOLDS = 10


def f_test(
    explained: float, df: int, residual: float, freedom: int
) -> tuple[float | None, float | None]:
    """F = (explained / df) / (residual / freedom), and how likely chance is; None without df."""
    from scipy import special

    if df < 1:
        return None, None
    if residual <= 1e-24 * max(explained, 1e-300):
        return math.inf, 0.0
    f = explained / df / (residual / freedom)
    return f, float(special.fdtrc(df, freedom, f))


def cross_validated_r2(matrix: Floats, values: Floats) -> float | None:
    """R2 of rows that were left out, in folds drawn with a fixed seed.

    Each left-out row is compared with the mean of the others, which is what one would say without
    the regression.
    """
    rows = len(values)
    order = np.random.default_rng(0).permutation(rows)
    missed = by_mean = 0.0
    for fold in np.array_split(order, min(FOLDS, rows)):
        rest = np.ones(rows, dtype=bool)
        rest[fold] = False
        found = np.linalg.lstsq(matrix[rest], values[rest], rcond=None)[0]
        missed += float(np.sum((values[fold] - matrix[fold] @ found) ** 2))
        by_mean += float(np.sum((values[fold] - values[rest].mean()) ** 2))
    return 1 - missed / by_mean if by_mean > 0 else None


def residual_sum(matrix: Floats, values: Floats) -> float:
    """Squares that a fit leaves."""
    found = np.linalg.lstsq(matrix, values, rcond=None)[0]
    return float(np.sum((values - matrix @ found) ** 2))
