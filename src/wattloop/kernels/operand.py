"""Inputs that every framework builds alike and any element of which can be recomputed.

An operand of any size is a short random pattern, repeated: x_i = pattern[i mod PERIOD]. A
framework gets the pattern and repeats it on its device, so gigabytes need not be drawn on the host
nor copied; a check recomputes the few elements it needs, exactly as the device holds them. The
period is prime, so rows of a matrix differ. Values fill all digits of their format: a GPU that
multiplies round numbers draws less power and reaches higher clocks than one at work.
"""

from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from wattloop.kernels.dtypes import DTYPES, rounded

__all__ = ["PERIOD", "Operand"]

PERIOD = 65_521
Array = Any


class Operand(NamedTuple):
    """One input array: uniform in [-1, 1)."""

    seed: int
    shape: tuple[int, ...]
    dtype_name: str

    @property
    def length(self) -> int:
        """Elements."""
        return prod(self.shape)

    @property
    def pattern(self) -> Array:
        """The repeated values, as float64, already rounded to the format."""
        return _pattern(self.seed, self.dtype_name)

    def at(self, flat_indices: Array) -> Array:
        """Elements at these positions of the flattened array, as float64."""
        return self.pattern[np.asarray(flat_indices, dtype=np.int64) % PERIOD]

    def whole(self) -> Array:
        """All of it as float64; for small ones."""
        return np.resize(self.pattern, self.shape)


@lru_cache(maxsize=32)
def _pattern(seed: int, dtype_name: str) -> Array:
    values = np.random.default_rng(seed).uniform(-1.0, 1.0, PERIOD)
    return rounded(values, DTYPES[dtype_name])
