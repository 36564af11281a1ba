"""How good a linear fit is: F tests, and how well it does on rows it has not seen."""

import math

import numpy as np

from wattloop.analyze.table import Floats

__all__ = [
    "FOLDS",
    "TOLERANCE",
    "cross_validated_r2",
    "f_test",
    "rank_of",
    "residual_sum",
    "solved",
]

FOLDS = 10
TOLERANCE = 1e-10
"""Of eigenvalues of X'X, so 1e-5 of the columns themselves."""


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


def solved(gram: Floats, moments: Floats) -> Floats:
    """Coefficients from X'X and X'y; the smallest ones where the design is rank deficient.

    Columns are of size 1 (sum coding, standardised numbers), so squaring the condition is no harm,
    and ten thousand rows cost as much as ten.
    """
    return np.asarray(np.linalg.lstsq(gram, moments, rcond=TOLERANCE)[0], dtype=np.float64)


def rank_of(gram: Floats) -> int:
    """Of X, from X'X."""
    values = np.linalg.eigvalsh(gram)
    return int((values > TOLERANCE * values[-1]).sum())


def cross_validated_r2(matrix: Floats, values: Floats) -> float | None:
    """R2 of rows that were left out, in folds drawn with a fixed seed.

    Each left-out row is compared with the mean of the others, which is what one would say without
    the regression.
    """
    rows = len(values)
    order = np.random.default_rng(0).permutation(rows)
    gram, moments = matrix.T @ matrix, matrix.T @ values
    missed = by_mean = 0.0
    for fold in np.array_split(order, min(FOLDS, rows)):
        own, left = matrix[fold], values[fold]
        found = solved(gram - own.T @ own, moments - own.T @ left)
        mean = (values.sum() - left.sum()) / (rows - len(fold))
        missed += float(np.sum((left - own @ found) ** 2))
        by_mean += float(np.sum((left - mean) ** 2))
    return 1 - missed / by_mean if by_mean > 0 else None


def residual_sum(matrix: Floats, values: Floats) -> float:
    """Squares that a fit leaves."""
    found = solved(matrix.T @ matrix, matrix.T @ values)
    return float(np.sum((values - matrix @ found) ** 2))
