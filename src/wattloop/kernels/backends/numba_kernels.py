"""The kernels as plain loops, for Numba to compile: scalar, vectorised or on several threads.

`prange` is `range` unless the function is compiled for several threads. Factors come in as
arguments of the arrays' own type, since a Python float would turn fp32 arithmetic into fp64.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import prange, uint32, uint64

Array = Any


def gemm(a: Array, b: Array, c: Array, zero: Any) -> Array:
    """Rows of B scaled and summed: the inner loop runs along memory."""
    n = a.shape[0]
    for i in prange(n):
        for j in range(n):
            c[i, j] = zero
        for k in range(n):
            factor = a[i, k]
            for j in range(n):
                c[i, j] += factor * b[k, j]
    return c


def spmv(starts: Array, columns: Array, values: Array, x: Array, y: Array) -> Array:
    for i in prange(y.shape[0]):
        total = y.dtype.type(0)
        for place in range(starts[i], starts[i + 1]):
            total += values[place] * x[columns[place]]
        y[i] = total
    return y


def spmv_coo(rows: Array, columns: Array, values: Array, x: Array, y: Array, parts: int) -> Array:
    """Each part has whole rows: the non-zeros are sorted by row, as many in each."""
    n = y.shape[0]
    each = rows.shape[0] // n
    for part in prange(parts):
        begin, end = part * n // parts, (part + 1) * n // parts
        y[begin:end] = 0
        for place in range(begin * each, end * each):
            y[rows[place]] += values[place] * x[columns[place]]
    return y


def triad(a: Array, b: Array, c: Array, scalar: Any) -> Array:
    for i in prange(a.shape[0]):
        a[i] = b[i] + scalar * c[i]
    return a


def stencil(u: Array, v: Array, centre: Any, neighbour: Any) -> Array:
    m = v.shape[0]
    for i in prange(m):
        for j in range(m):
            for k in range(m):
                around = (
                    u[i, j + 1, k + 1]
                    + u[i + 2, j + 1, k + 1]
                    + u[i + 1, j, k + 1]
                    + u[i + 1, j + 2, k + 1]
                    + u[i + 1, j + 1, k]
                    + u[i + 1, j + 1, k + 2]
                )
                v[i, j, k] = centre * u[i + 1, j + 1, k + 1] + neighbour * around
    return v


def montecarlo(real: Any) -> Callable[[int, int], int]:
    """A loop that counts points inside the circle, in numbers of type `real`.

    A point is a hash of its number, without state, so any thread can draw any point. 24 bits
    of the hash fill a float32; fp64 gets the same points.
    """
    scale, one = 2.0**-24, 1.0

    def count(points: int, seed: int) -> int:
        inside = 0
        for i in prange(points):
            first = uint32(uint32(2 * i) + uint32(seed))
            second = uint32(first + uint32(1))
            # two rounds of multiply and shift, on x and y alike
            first = uint32((first ^ (first >> uint32(16))) * uint64(0x7FEB352D))
            second = uint32((second ^ (second >> uint32(16))) * uint64(0x7FEB352D))
            first = uint32((first ^ (first >> uint32(15))) * uint64(0x846CA68B))
            second = uint32((second ^ (second >> uint32(15))) * uint64(0x846CA68B))
            first = uint32(first ^ (first >> uint32(16)))
            second = uint32(second ^ (second >> uint32(16)))
            x = real(scale) * real(first >> uint32(8))
            y = real(scale) * real(second >> uint32(8))
            if x * x + y * y <= real(one):
                inside += 1
        return inside

    return count


def dist(x: Array, r: Array) -> Array:
    """Eight coordinates, written out: the loop over points is the one to vectorise."""
    for i in prange(r.shape[0]):
        total = x[0, i] * x[0, i]
        total += x[1, i] * x[1, i]
        total += x[2, i] * x[2, i]
        total += x[3, i] * x[3, i]
        total += x[4, i] * x[4, i]
        total += x[5, i] * x[5, i]
        total += x[6, i] * x[6, i]
        total += x[7, i] * x[7, i]
        r[i] = np.sqrt(total)
    return r
