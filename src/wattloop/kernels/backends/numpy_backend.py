"""NumPy (and SciPy for the sparse matrix, where it is installed)."""

import importlib.util
from typing import Any, ClassVar

import numpy as np

from wattloop.kernels import catalog
from wattloop.kernels.backend import Array, Backend, Run
from wattloop.kernels.kernel import Dtype, Operand

CHUNK = 2**18
"""Random points drawn at a time: two arrays that stay in a core's cache."""


class NumpyBackend(Backend):
    """Whole-array operations into arrays that are already there."""

    name, package, extra = "numpy", "numpy", ""
    devices = ("cpu",)
    styles = ("library",)
    dtypes = ("fp64", "fp32")
    methods: ClassVar = {
        "gemm": "np.matmul (BLAS)",
        "spmv": "scipy.sparse CSR, or gather and row sums",
        "spmv_coo": "scipy.sparse COO, or np.add.at",
        "triad": "np.multiply, np.add",
        "stencil": "sums of slices",
        "montecarlo": "Generator.random",
        "dist": "squares summed, np.sqrt",
    }

    def gemm(self, kernel: catalog.Gemm) -> Run:
        a, b = host_array(kernel.a, kernel.dtype), host_array(kernel.b, kernel.dtype)
        c = np.empty_like(a)
        return lambda: np.matmul(a, b, out=c)

    def spmv(self, kernel: catalog.Spmv) -> Run:
        """SciPy's compiled loop; without SciPy the fixed row length is used."""
        values, x = host_array(kernel.values, kernel.dtype), host_array(kernel.x, kernel.dtype)
        columns = kernel.columns(np.arange(kernel.size))
        if importlib.util.find_spec("scipy") is not None:
            from scipy.sparse import csr_matrix

            shape = (kernel.size, kernel.size)
            matrix = csr_matrix((values, columns.reshape(-1), kernel.row_starts()), shape=shape)
            return lambda: matrix @ x
        values = values.reshape(-1, catalog.PER_ROW)
        return lambda: np.einsum("ik,ik->i", values, x[columns])

    def spmv_coo(self, kernel: catalog.SpmvCoo) -> Run:
        values, x = host_array(kernel.values, kernel.dtype), host_array(kernel.x, kernel.dtype)
        rows, columns = kernel.rows(), kernel.columns(np.arange(kernel.size)).reshape(-1)
        if importlib.util.find_spec("scipy") is not None:
            from scipy.sparse import coo_matrix

            matrix = coo_matrix((values, (rows, columns)), shape=(kernel.size, kernel.size))
            return lambda: matrix @ x

        def run() -> Array:
            y = np.zeros_like(x)
            np.add.at(y, rows, values * x[columns])
            return y

        return run

    def triad(self, kernel: catalog.Triad) -> Run:
        """Two passes: numpy has no fused multiply and add."""
        b, c = host_array(kernel.b, kernel.dtype), host_array(kernel.c, kernel.dtype)
        a, scalar = np.empty_like(b), b.dtype.type(catalog.SCALAR)

        def run() -> Array:
            np.multiply(c, scalar, out=a)
            return np.add(a, b, out=a)

        return run

    def stencil(self, kernel: catalog.Stencil) -> Run:
        u = host_array(kernel.u, kernel.dtype)
        v = np.empty((kernel.inner,) * 3, u.dtype)
        centre = u[1:-1, 1:-1, 1:-1]
        scaled = np.empty_like(v)
        first, *others = neighbours(u)
        middle, around = u.dtype.type(catalog.CENTRE), u.dtype.type(catalog.NEIGHBOUR)

        def run() -> Array:
            np.add(first, others[0], out=v)
            for other in others[1:]:
                np.add(v, other, out=v)
            np.multiply(v, around, out=v)
            np.multiply(centre, middle, out=scaled)
            return np.add(v, scaled, out=v)

        return run

    def montecarlo(self, kernel: catalog.MonteCarlo) -> Run:
        generator = np.random.default_rng(0)
        dtype: Any = np.dtype(kernel.dtype.numpy_name)
        chunk = min(CHUNK, kernel.size)
        x, y = np.empty(chunk, dtype), np.empty(chunk, dtype)

        def run() -> float:
            inside, left = 0, kernel.size
            while left > 0:
                part = min(chunk, left)
                a, b = x[:part], y[:part]
                generator.random(out=a, dtype=dtype)
                generator.random(out=b, dtype=dtype)
                np.multiply(a, a, out=a)
                np.multiply(b, b, out=b)
                np.add(a, b, out=a)
                inside += int(np.count_nonzero(a <= 1))
                left -= part
            return 4 * inside / kernel.size

        return run

    def dist(self, kernel: catalog.Dist) -> Run:
        """Without a temporary array of all squares, which `np.linalg.norm` would make."""
        x = host_array(kernel.x, kernel.dtype)
        r = np.empty(kernel.size, x.dtype)

        def run() -> Array:
            np.einsum("ki,ki->i", x, x, out=r)
            return np.sqrt(r, out=r)

        return run

    def elements(self, result: Any, flat_indices: Array) -> Array:
        return np.asarray(result, dtype=np.float64).reshape(-1)[flat_indices]


def host_array(operand: Operand, dtype: Dtype) -> Array:
    return np.resize(operand.pattern.astype(dtype.numpy_name), operand.shape)


def neighbours(u: Any) -> list[Any]:
    """Six views of a cube, shifted by one along each axis; works for every framework's arrays."""
    one = slice(1, -1)
    low, high = slice(None, -2), slice(2, None)
    return [
        u[low, one, one], u[high, one, one],
        u[one, low, one], u[one, high, one],
        u[one, one, low], u[one, one, high],
    ]  # fmt: skip
