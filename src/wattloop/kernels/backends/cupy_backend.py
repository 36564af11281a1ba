"""CuPy: library calls, and one small CUDA kernel where an expression would take several passes."""

import importlib.util
import math
from typing import Any, ClassVar

import numpy as np

from wattloop.kernels import catalog
from wattloop.kernels.backend import Array, Backend, BackendUnavailable, Run, chunks
from wattloop.kernels.backends.numpy_backend import neighbours
from wattloop.kernels.kernel import Operand

CHUNK = 2**27
"""Random points drawn at a time."""
ROWS = 2**14
LANE_B = 16
"""The widest load of a CUDA thread."""


class CupyBackend(Backend):
    """NumPy's interface on the GPU.

    tf32 works where `CUPY_TF32=1` was set before CuPy was imported, as `wattloop bench` does.
    """

    name, package, extra = "cupy", "cupy", "cupy"
    devices = ("gpu",)
    styles = ("library",)
    dtypes = ("fp64", "fp32", "tf32", "fp16")
    methods: ClassVar = {
        "gemm": "cupy.matmul",
        "spmv": "cupyx.scipy.sparse CSR @ vector",
        "triad": "ElementwiseKernel, 16 B a thread",
        "stencil": "ElementwiseKernel on slices",
        "montecarlo": "RandomState (Philox), ReductionKernel",
        "dist": "ElementwiseKernel",
    }

    def _start(self) -> None:
        import cupy

        self._cupy = cupy
        try:
            count = cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise BackendUnavailable(f"cupy sees no GPU ({error}); check 'nvidia-smi'") from None
        if not count:
            raise BackendUnavailable("cupy sees no GPU; check 'nvidia-smi'")

    def gemm(self, kernel: catalog.Gemm) -> Run:
        cupy = self._cupy
        a, b = self._array(kernel.a), self._array(kernel.b)
        c = cupy.empty_like(a)
        return lambda: cupy.matmul(a, b, out=c)

    def spmv(self, kernel: catalog.Spmv) -> Run:
        """By cuSPARSE; half precision, which it lacks, through a kernel of our own."""
        cupy = self._cupy
        values, x = self._array(kernel.values), self._array(kernel.x)
        columns = cupy.asarray(kernel.columns(np.arange(kernel.size)).reshape(-1))
        if kernel.dtype.itemsize >= 4:
            from cupyx.scipy.sparse import csr_matrix

            starts = cupy.asarray(kernel.row_starts())
            shape = (kernel.size, kernel.size)
            matrix = csr_matrix((values, columns, starts), shape=shape)
            return lambda: matrix @ x
        y = cupy.empty_like(x)
        product = cupy.ElementwiseKernel(
            "raw T v, raw int32 c, raw T x",
            "T y",
            f"float sum = 0; long long first = (long long)i * {catalog.PER_ROW};"
            f"for (int t = 0; t < {catalog.PER_ROW}; ++t)"
            " sum += (float)v[first + t] * (float)x[c[first + t]]; y = sum;",
            "wattloop_spmv",
        )
        return lambda: product(values, columns, x, y)

    def triad(self, kernel: catalog.Triad) -> Run:
        cupy = self._cupy
        b, c = self._array(kernel.b), self._array(kernel.c)
        a, scalar = cupy.empty_like(b), b.dtype.type(catalog.SCALAR)
        lanes = LANE_B // kernel.dtype.itemsize
        if kernel.size % lanes:
            plain = cupy.ElementwiseKernel("T b, T c, T s", "T a", "a = b + s * c", "triad_plain")
            return lambda: plain(b, c, scalar, a)
        # 4 bytes a thread leave half of an H200's bandwidth unused: each takes 16
        wide = cupy.ElementwiseKernel(
            "raw T b, raw T c, T s",
            "raw T a",
            "const Pack<T> x = reinterpret_cast<const Pack<T>*>(&b[0])[i];"
            "const Pack<T> y = reinterpret_cast<const Pack<T>*>(&c[0])[i];"
            "Pack<T> z;"
            f"for (int k = 0; k < {lanes}; ++k) z.lane[k] = x.lane[k] + s * y.lane[k];"
            "reinterpret_cast<Pack<T>*>(&a[0])[i] = z;",
            "triad_wide",
            preamble="template <typename U> struct __align__(16) Pack { U lane[16 / sizeof(U)]; };",
        )
        return lambda: wide(b, c, scalar, a, size=kernel.size // lanes)

    def stencil(self, kernel: catalog.Stencil) -> Run:
        cupy = self._cupy
        u = self._array(kernel.u)
        v = cupy.empty((kernel.inner,) * 3, u.dtype)
        step = cupy.ElementwiseKernel(
            "T m, T a, T b, T c, T d, T e, T f, T c0, T c1",
            "T v",
            "v = c0 * m + c1 * (a + b + c + d + e + f)",
            "wattloop_stencil",
        )
        views = (u[1:-1, 1:-1, 1:-1], *neighbours(u))
        factors = (u.dtype.type(catalog.CENTRE), u.dtype.type(catalog.NEIGHBOUR))
        return lambda: step(*views, *factors, v)

    def montecarlo(self, kernel: catalog.MonteCarlo) -> Run:
        cupy = self._cupy
        philox = cupy.cuda.curand.CURAND_RNG_PSEUDO_PHILOX4_32_10
        state = cupy.random.RandomState(0, method=philox)
        dtype = np.dtype(kernel.dtype.numpy_name)
        chunk = min(CHUNK, kernel.size)
        parts = chunks(kernel.size, chunk)
        inside = cupy.ReductionKernel(
            "T x, T y", "int64 count", "x * x + y * y <= 1 ? 1 : 0", "a + b", "count = a", "0",
            "wattloop_inside",
        )  # fmt: skip

        def run() -> Any:
            count = cupy.zeros((), cupy.int64)
            for part in parts:
                # one result per row: a reduction to a single number runs on a single block
                shape = (math.gcd(part, ROWS), -1)
                x = state.random_sample(part, dtype=dtype).reshape(shape)
                y = state.random_sample(part, dtype=dtype).reshape(shape)
                count += inside(x, y, axis=1).sum()
            return count * (4 / kernel.size)

        return run

    def dist(self, kernel: catalog.Dist) -> Run:
        cupy = self._cupy
        x = self._array(kernel.x)
        r = cupy.empty(kernel.size, x.dtype)
        wide = "double" if kernel.dtype.itemsize == 8 else "float"
        norm = cupy.ElementwiseKernel(
            "raw T x, int64 n",
            "T r",
            f"{wide} sum = 0; for (int k = 0; k < {catalog.COORDINATES}; ++k)"
            f" {{ {wide} value = x[k * n + i]; sum += value * value; }} r = sqrt(sum);",
            "wattloop_dist",
        )
        return lambda: norm(x, kernel.size, r)

    def elements(self, result: Any, flat_indices: Array) -> Array:
        where = self._cupy.asarray(np.asarray(flat_indices))
        return self._cupy.asnumpy(result.reshape(-1)[where]).astype(np.float64)

    def synchronise(self, result: Any) -> None:
        self._cupy.cuda.get_current_stream().synchronize()

    def free_memory_b(self) -> int | None:
        return int(self._cupy.cuda.runtime.memGetInfo()[0])

    def peak_memory_b(self) -> int | None:
        """What CuPy's pool holds: it grows to the most that was needed."""
        return int(self._cupy.get_default_memory_pool().total_bytes())

    def device_name(self) -> str:
        return str(self._cupy.cuda.runtime.getDeviceProperties(0)["name"].decode())

    def close(self) -> None:
        self._cupy.get_default_memory_pool().free_all_blocks()

    @classmethod
    def missing(cls) -> str:
        """CuPy has a package per CUDA version."""
        if importlib.util.find_spec("cupy") is not None:
            return ""
        return f"cupy is not installed; {cls.remedy()} (CUDA 12), or pip install cupy-cuda13x"

    def _array(self, operand: Operand) -> Any:
        cupy = self._cupy
        numpy_name = {"fp64": "float64", "fp16": "float16"}.get(operand.dtype_name, "float32")
        pattern = cupy.asarray(operand.pattern.astype(numpy_name))
        return cupy.resize(pattern, operand.shape)
