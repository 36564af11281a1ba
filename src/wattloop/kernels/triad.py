"""TRIAD: a_i = b_i + s c_i over long vectors. Bound by memory.

    FLOP   2 n
    bytes  3 n s           b and c read, a written
    FLOP/B 2 / (3 s)

Checked at sampled elements against float64; allowed are two steps of the format.
"""

from typing import Any, ClassVar

import numpy as np

from wattloop.kernels.kernel import Dtype, Kernel, Operand

SCALAR = 0.75
"""Exact in every format."""
Array = Any


class Triad(Kernel):
    """Vector plus scaled vector."""

    name = "triad"
    equation = "a = b + s c"
    size_means = "elements of each vector"
    sizes: ClassVar = {"small": 2**24, "medium": 2**26, "large": 2**29, "huge": 2**31}
    smallest, largest = 2, 2**40

    def __init__(self, size: int, dtype: Dtype) -> None:
        super().__init__(size, dtype)
        self.b = Operand(1, (size,), dtype.name)
        self.c = Operand(2, (size,), dtype.name)
        self.flops = 2 * size
        self.bytes_read = 2 * size * dtype.itemsize
        self.bytes_written = size * dtype.itemsize
        self.result_length = size

    def expected(self, flat_indices: Array) -> tuple[Array, Array]:
        """The same in float64."""
        b, c = self.b.at(flat_indices), SCALAR * self.c.at(flat_indices)
        return b + c, 2 * self.dtype.epsilon * (np.abs(b) + np.abs(c)) + 1e-300
