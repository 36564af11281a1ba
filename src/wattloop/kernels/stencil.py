"""STENCIL: one step of heat diffusion, 7 points in 3-D. Bound by memory, with reuse in caches.

    v_ijk = c0 u_ijk + c1 (u_i-1 + u_i+1 + u_j-1 + u_j+1 + u_k-1 + u_k+1)

    FLOP   8 (n - 2)^3     two products and six sums per inner point
    bytes  n^3 s           u read once
           + (n - 2)^3 s   v written, inner points only
    FLOP/B about 4 / s

Checked at sampled points against float64; allowed are four steps of the format.
"""

from typing import Any, ClassVar

import numpy as np

from wattloop.kernels.kernel import Dtype, Kernel, Operand

CENTRE, NEIGHBOUR = 0.25, 0.125
"""Exact in every format, and they sum to one: nothing is gained or lost."""
Array = Any


class Stencil(Kernel):
    """Seven-point stencil on a cube."""

    name = "stencil"
    equation = "v = c0 u + c1 (its 6 neighbours)"
    size_means = "points along each edge of the cube"
    sizes: ClassVar = {"small": 192, "medium": 384, "large": 768, "huge": 1_280}
    smallest, largest = 3, 4_096

    def __init__(self, size: int, dtype: Dtype) -> None:
        super().__init__(size, dtype)
        self.u = Operand(1, (size, size, size), dtype.name)
        self.inner = size - 2
        """Points along each edge of the result."""
        self.flops = 8 * self.inner**3
        self.bytes_read = size**3 * dtype.itemsize
        self.bytes_written = self.inner**3 * dtype.itemsize
        self.result_length = self.inner**3

    def expected(self, flat_indices: Array) -> tuple[Array, Array]:
        """Those points in float64."""
        n = self.size
        plane, rest = np.divmod(np.asarray(flat_indices, dtype=np.int64), self.inner**2)
        row, column = np.divmod(rest, self.inner)
        centre = ((plane + 1) * n + row + 1) * n + column + 1
        around = [self.u.at(centre + step) for step in (-n * n, n * n, -n, n, -1, 1)]
        right = CENTRE * self.u.at(centre) + NEIGHBOUR * sum(around)
        size = CENTRE * np.abs(self.u.at(centre)) + NEIGHBOUR * sum(np.abs(a) for a in around)
        # a framework may keep each partial sum of the neighbours in the format
        return right, 8 * self.dtype.epsilon * size + 1e-300
