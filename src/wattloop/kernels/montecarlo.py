"""MONTE CARLO: pi from the share of random points of the unit square inside the circle.

    pi ~ 4 / n  #{ x^2 + y^2 <= 1 }

    FLOP   4 n             two products, a sum and a comparison per point; drawing x and y is not
                           counted: generators work on integers, and each framework has its own
    bytes  0               points can be drawn, used and forgotten. Frameworks that store them
                           move data all the same, and pay for it in time
    FLOP/B none

Checked: the estimate lies within five standard deviations of pi, 4 sqrt(p (1 - p) / n) each.
Only fp32 and fp64: half-precision formats have too few numbers between 0 and 1.
"""

import math
from typing import Any, ClassVar

import numpy as np

from wattloop.kernels.kernel import Dtype, Kernel

DEVIATIONS = 5.0
Array = Any


class MonteCarlo(Kernel):
    """Estimate of pi."""

    name = "montecarlo"
    equation = "pi = 4 share of points with x^2 + y^2 <= 1"
    size_means = "random points"
    sizes: ClassVar = {"small": 2**22, "medium": 2**26, "large": 2**30, "huge": 2**31}
    smallest, largest = 1_000, 2**32 - 2
    dtypes = ("fp64", "fp32", "tf32")
    dtype_reason = "half-precision formats have too few numbers between 0 and 1"
    bytes_read = bytes_written = 0
    result_length = 1

    def __init__(self, size: int, dtype: Dtype) -> None:
        super().__init__(size, dtype)
        self.flops = 4 * size

    def expected(self, flat_indices: Array) -> tuple[Array, Array]:
        share = math.pi / 4
        deviation = 4 * math.sqrt(share * (1 - share) / self.size)
        return np.array([math.pi]), np.array([DEVIATIONS * deviation])
