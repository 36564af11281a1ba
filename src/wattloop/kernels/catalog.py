"""The six kernels: GEMM, SPMV, TRIAD, STENCIL, MONTE CARLO and DIST."""

import math
from typing import Any, ClassVar

import numpy as np

from wattloop.kernels.kernel import Dtype, Kernel, Operand

Array = Any


class Gemm(Kernel):
    """GEMM: C = A B with square matrices. Bound by computing.

        FLOP   2 n^3           a product and a sum for each of n^3 terms
        bytes  3 n^2 s         A and B read, C written; s bytes a value
        FLOP/B 2 n / (3 s)

    Checked at sampled elements: c_ij = sum_k a_ik b_kj in float64 from the same inputs. Allowed is
    the rounding of the result (four steps of its format) and that of a sum of n terms, which grows
    like sqrt(n) times the terms' root sum of squares.
    """

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


PER_ROW = 16
INDEX_B = 4


class Spmv(Kernel):
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


class SpmvCoo(Spmv):
    """SPMV in coordinate form, as the thesis has it (SPMV_COO): a row number per non-zero.

    bytes  z (s + 8)       values, 32-bit row and column numbers
           + 2 n s         x read once, y written
    """

    name = "spmv_coo"
    equation = "y = A x, A sparse, by coordinates"

    def __init__(self, size: int, dtype: Dtype) -> None:
        super().__init__(size, dtype)
        matrix_b = self.non_zeros * (dtype.itemsize + 2 * INDEX_B)
        self.bytes_read = matrix_b + size * dtype.itemsize

    def rows(self) -> Array:
        """Row number of each non-zero (32 bits), in order."""
        return np.repeat(np.arange(self.size, dtype=np.int32), PER_ROW)


def _hashed(numbers: Array) -> Array:
    """A bijection of 32-bit numbers that looks random (multiply and shift, three rounds)."""
    numbers = numbers ^ (numbers >> np.uint32(16))
    numbers = numbers * np.uint32(0x7FEB352D)
    numbers = numbers ^ (numbers >> np.uint32(15))
    numbers = numbers * np.uint32(0x846CA68B)
    return numbers ^ (numbers >> np.uint32(16))


SCALAR = 0.75
"""Exact in every format."""


class Triad(Kernel):
    """TRIAD: a_i = b_i + s c_i over long vectors. Bound by memory.

        FLOP   2 n
        bytes  3 n s           b and c read, a written
        FLOP/B 2 / (3 s)

    Checked at sampled elements against float64; allowed are two steps of the format.
    """

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


CENTRE, NEIGHBOUR = 0.25, 0.125
"""Exact in every format, and they sum to one: nothing is gained or lost."""


class Stencil(Kernel):
    """STENCIL: one step of heat diffusion, 7 points in 3-D. Bound by memory, with reuse in caches.

        v_ijk = c0 u_ijk + c1 (u_i-1 + u_i+1 + u_j-1 + u_j+1 + u_k-1 + u_k+1)

        FLOP   8 (n - 2)^3     two products and six sums per inner point
        bytes  n^3 s           u read once
               + (n - 2)^3 s   v written, inner points only
        FLOP/B about 4 / s

    Checked at sampled points against float64; allowed are four steps of the format.
    """

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


DEVIATIONS = 5.0


class MonteCarlo(Kernel):
    """MONTE CARLO: pi from the share of random points of the unit square inside the circle.

        pi ~ 4 / n  #{ x^2 + y^2 <= 1 }

        FLOP   4 n             two products, a sum and a comparison per point; drawing x and y is
                               not counted: generators work on integers, each framework has its own
        bytes  0               points can be drawn, used and forgotten. Frameworks that store them
                               move data all the same, and pay for it in time
        FLOP/B none

    Checked: the estimate lies within five standard deviations of pi, 4 sqrt(p (1 - p) / n) each.
    Only fp32 and fp64: half-precision formats have too few numbers between 0 and 1.
    """

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


COORDINATES = 8


class Dist(Kernel):
    """DIST: distance from the origin of points with eight coordinates. Memory and arithmetic.

        r_i = sqrt( x_1i^2 + ... + x_8i^2 )

        FLOP   16 n            eight squares, seven sums, one root per point
        bytes  9 n s           eight coordinates read, a distance written
        FLOP/B 16 / (9 s)

    The thesis does not say how many coordinates its "generalised Euclidean distance from origin"
    has; eight is what its low intensity and its vectorised accesses suggest. Coordinates lie one
    after the other (8 x n), so that neighbouring points are neighbours in memory. Checked at
    sampled points against float64; allowed are four steps of the format.
    """

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
