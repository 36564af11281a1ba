"""How efficiency grows with size: five functions of a dimension over its reference.

All are increasing and at most 1. The sigmoid of equation 4.12 starts at one half, because sizes
are positive; the others start at 0.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

__all__ = ["SATURATIONS"]

Array = NDArray[np.float64]


def _sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def _tanh(x: Array) -> Array:
    return np.asarray(np.tanh(x))


def _arctan(x: Array) -> Array:
    return np.asarray(np.arctan(x) * (2 / np.pi))


def _softsign(x: Array) -> Array:
    return x / (1 + x)


def _algebraic(x: Array) -> Array:
    return np.asarray(x / np.sqrt(1 + x * x))


SATURATIONS: Mapping[str, Callable[[Array], Array]] = {
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "arctan": _arctan,
    "softsign": _softsign,
    "algebraic": _algebraic,
}
"""Name -> S_sat."""
