"""DIST: distance from the origin of points with eight coordinates. Memory and arithmetic.

    r_i = sqrt( x_1i^2 + ... + x_8i^2 )

    FLOP   16 n            eight squares, seven sums, one root per point
    bytes  9 n s           eight coordinates read, a distance written
    FLOP/B 16 / (9 s)

The thesis does not say how many coordinates its "generalised Euclidean distance from origin" has;
eight is what its low intensity and its vectorised accesses suggest. Coordinates lie one after
the other (8 x n), so that neighbouring points are neighbours in memory. Checked at sampled points
against float64; allowed are four steps of the format.
"""

from typing import Any, ClassVar

import numpy as np

from wattloop.kernels.kernel import Dtype, Kernel, Operand

COORDINATES = 8
Array = Any


class Dist(Kernel):
    """Norm of many short vectors."""

    name = "dist"
    equation = "r = sqrt(sum of 8 squares)"
    size_means = "points with 8 coordinates"
    sizes: ClassVar = {"small": 2**21, "medium": 2**24, "large": 2**27, "huge": 2**29}
    smallest, largest = 2, 2**38

    def __init__(self, size: int, dtype: Dtype) -> None:
        super().__init__(size, dtype)
        self.x = Operand(1, (COORDINATES, size), dtype.name)
        self.flops = 2 * COORDINATES * size
        self.bytes_read = COORDINATES * size * dtype.itemsize
        self.bytes_written = size * dtype.itemsize
        self.result_length = size

    def expected(self, flat_indices: Array) -> tuple[Array, Array]:
        """Those points in float64."""
        points = np.asarray(flat_indices, dtype=np.int64)
        lines = np.arange(COORDINATES)[:, None] * self.size
        right = np.sqrt((self.x.at(lines + points) ** 2).sum(axis=0))
        return right, 4 * self.dtype.epsilon * right + 1e-300
