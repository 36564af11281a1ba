"""How evenly people are served."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["jain"]


def jain(values: NDArray[np.float64]) -> float | None:
    """Jain's index: 1 when all are equal, 1/n when one has everything; None for nobody.

    J = (sum x)^2 / (n sum x^2)
    """
    if not len(values):
        return None
    squares = float(np.sum(values**2))
    if squares == 0.0:
        return 1.0
    return float(np.sum(values)) ** 2 / (len(values) * squares)
