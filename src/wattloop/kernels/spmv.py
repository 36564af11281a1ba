"""SPMV: y = A x with a sparse matrix of 16 non-zeros a row, spread over it. Bound by memory.

    FLOP   2 z             z = 16 n non-zeros: a product and a sum each
    bytes  z (s + 4)       values and 32-bit column numbers
           + 4 (n + 1)     where rows begin (CSR)
           + 2 n s         x read once, y written
    FLOP/B about 2 / (s + 4)

Row i has its t-th non-zero somewhere in the t-th sixteenth of the columns, at a place drawn by
hashing (i, t): accesses to x are as irregular as the thesis wants them, columns are sorted and
distinct, and any row can be recomputed. Checked at sampled rows against float64.
"""

from typing import Any, ClassVar

import numpy as np

from wattloop.kernels.kernel import Dtype, Kernel, Operand

PER_ROW = 16
INDEX_B = 4
Array = Any


class Spmv(Kernel):
    """Sparse matrix times vector."""

    name = "spmv"
    equation = "y = A x, A sparse"
    size_means = "rows of the square matrix, 16 non-zeros each"
    sizes: ClassVar = {"small": 2**18, "medium": 2**20, "large": 2**23, "huge": 2**25}
    smallest, largest = 2 * PER_ROW, 2**27 - 1
    """The number of non-zeros has to fit 32 bits."""

    def __init__(self, size: int, dtype: Dtype) -> None:
        super().__init__(size, dtype)
        self.non_zeros = PER_ROW * size
        self.values = Operand(1, (self.non_zeros,), dtype.name)
        self.x = Operand(2, (size,), dtype.name)
        self.flops = 2 * self.non_zeros
        matrix_b = self.non_zeros * (dtype.itemsize + INDEX_B) + (size + 1) * INDEX_B
        self.bytes_read = matrix_b + size * dtype.itemsize
        self.bytes_written = size * dtype.itemsize
        self.result_length = size

    def columns(self, rows: Array) -> Array:
        """Column numbers (32 bits) of these rows, one line per row."""
        width = np.uint32(self.size // PER_ROW)
        strip = np.arange(PER_ROW, dtype=np.uint32)
        rows = np.asarray(rows, dtype=np.uint32)
        place = _hashed(rows[:, None] * np.uint32(PER_ROW) + strip) % width
        return (place + strip * width).astype(np.int32)

    def row_starts(self) -> Array:
        """Where each row begins among the non-zeros, and the end of the last (32 bits)."""
        return np.arange(0, self.non_zeros + 1, PER_ROW, dtype=np.int32)

    def expected(self, flat_indices: Array) -> tuple[Array, Array]:
        """Those rows in float64."""
        rows = np.asarray(flat_indices)
        places = rows[:, None] * PER_ROW + np.arange(PER_ROW)
        terms = self.values.at(places) * self.x.at(self.columns(rows))
        allowed = 4 * self.dtype.epsilon * np.abs(terms).sum(axis=1) + 1e-300
        return terms.sum(axis=1), allowed


def _hashed(numbers: Array) -> Array:
    """A bijection of 32-bit numbers that looks random (multiply and shift, three rounds)."""
    numbers = numbers ^ (numbers >> np.uint32(16))
    numbers = numbers * np.uint32(0x7FEB352D)
    numbers = numbers ^ (numbers >> np.uint32(15))
    numbers = numbers * np.uint32(0x846CA68B)
    return numbers ^ (numbers >> np.uint32(16))
