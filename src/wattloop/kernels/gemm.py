"""GEMM: C = A B with square matrices. Bound by computing.

    FLOP   2 n^3           a product and a sum for each of n^3 terms
    bytes  3 n^2 s         A and B read, C written; s bytes a value
    FLOP/B 2 n / (3 s)

Checked at sampled elements: c_ij = sum_k a_ik b_kj in float64 from the same inputs. Allowed is the
rounding of the result (four steps of its format) and that of a sum of n terms, which grows like
sqrt(n) times the terms' root sum of squares.
"""

from typing import Any, ClassVar

import numpy as np

from wattloop.kernels.kernel import Dtype, Kernel, Operand

Array = Any


class Gemm(Kernel):
    """Matrix times matrix."""

    name = "gemm"
    equation = "C = A B"
    size_means = "rows of the square matrices"
    sizes: ClassVar = {"small": 512, "medium": 2_048, "large": 8_192, "huge": 16_384}
    smallest, largest = 2, 200_000

    def __init__(self, size: int, dtype: Dtype) -> None:
        super().__init__(size, dtype)
        self.a = Operand(1, (size, size), dtype.name)
        self.b = Operand(2, (size, size), dtype.name)
        self.flops = 2 * size**3
        self.bytes_read = 2 * size**2 * dtype.itemsize
        self.bytes_written = size**2 * dtype.itemsize
        self.result_length = size**2

    def expected(self, flat_indices: Array) -> tuple[Array, Array]:
        """Dot products of a row and a column each."""
        n = self.size
        steps = np.arange(n)
        rows, columns = np.divmod(np.asarray(flat_indices), n)
        right, size = np.empty(len(rows)), np.empty(len(rows))
        for number, (row, column) in enumerate(zip(rows, columns, strict=True)):
            terms = self.a.at(row * n + steps) * self.b.at(steps * n + column)
            right[number] = terms.sum()
            size[number] = np.sqrt((terms**2).sum())
        of_result = 4 * self.dtype.epsilon * np.maximum(np.abs(right), size)
        return right, of_result + 4 * self.dtype.sum_epsilon * np.sqrt(n) * size
