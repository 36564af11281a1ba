"""Numba: the same loops as scalar code, as SIMD code, and as SIMD code on several threads."""

import importlib
import re
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from wattloop.kernels import catalog
from wattloop.kernels.backend import TARGETS, Array, Backend, Run, Unsupported
from wattloop.kernels.backends.numpy_backend import host_array

PACKED_X86 = re.compile(r"^\s+(v?(?:add|sub|mul|div|sqrt|fn?m(?:add|sub)\d+)p[sd])\b", re.MULTILINE)
"""Arithmetic on several floats at once: addps, vmulpd, vfmadd213ps ..."""
PACKED_ARM = re.compile(r"^\s+(f(?:add|sub|mul|div|sqrt|mla|mls))\s+[vz]\d+\.", re.MULTILINE)


class NumbaBackend(Backend):
    """Loops compiled by LLVM.

    scalar: LLVM's vectorisers off, so it needs `NUMBA_LOOP_VECTORIZE=0` and
    `NUMBA_SLP_VECTORIZE=0` before Numba is imported, as `wattloop bench` sets them in the process
    it starts. simd: vectorisers on, sums may be reordered. parallel: simd, on several threads.
    sse, avx: simd for an older processor (`TARGETS`), whose registers have 128 and 256 bits.
    """

    name, package, extra = "numba", "numba", "numba"
    devices = ("cpu",)
    styles = ("parallel", "simd", "scalar", "avx", "sse")
    dtypes = ("fp64", "fp32")
    methods: ClassVar = {
        "gemm": "three loops, rows of B",
        "spmv": "loop over CSR rows",
        "spmv_coo": "loop over non-zeros",
        "triad": "one loop",
        "stencil": "three loops",
        "montecarlo": "one loop, hashed points",
        "dist": "one loop",
    }

    def _start(self) -> None:
        import numba

        self._numba = numba
        if self.style == "scalar" and not _vectorisers_off(numba):
            raise Unsupported(
                "numba: scalar code needs NUMBA_LOOP_VECTORIZE=0 and NUMBA_SLP_VECTORIZE=0 set "
                "before numba is imported; 'wattloop bench' does that in a process of its own"
            )
        if self.style in TARGETS:
            self._check_target(TARGETS[self.style][0])
        if self.style == "parallel" and self.threads is not None:
            numba.set_num_threads(min(self.threads, numba.config.NUMBA_NUM_THREADS))
        self._loops: dict[tuple[Any, ...], Callable[..., Any]] = {}
        self.compiled: dict[str, Any] = {}
        """Kernel -> Numba's dispatcher, for who wants to see its assembly."""

    def _check_target(self, name: str) -> None:
        binding: Any = importlib.import_module("llvmlite.binding")
        if not binding.get_host_cpu_features().get("avx" if self.style == "avx" else "sse4.2"):
            raise Unsupported(f"numba: this processor has no {self.style.upper()}")
        if name != self._numba.config.CPU_NAME:
            raise Unsupported(
                f"numba: {self.style} code needs NUMBA_CPU_NAME={name} set before numba is "
                "imported; 'wattloop bench' does that in a process of its own"
            )

    def gemm(self, kernel: catalog.Gemm) -> Run:
        """Not blocked for caches: this shows what the compiler makes of loops, BLAS is numpy."""
        a, b = host_array(kernel.a, kernel.dtype), host_array(kernel.b, kernel.dtype)
        c, zero = np.empty_like(a), a.dtype.type(0)
        loop = self._loop("gemm")
        return lambda: loop(a, b, c, zero)

    def spmv(self, kernel: catalog.Spmv) -> Run:
        values, x = host_array(kernel.values, kernel.dtype), host_array(kernel.x, kernel.dtype)
        columns = kernel.columns(np.arange(kernel.size)).reshape(-1)
        starts, y = kernel.row_starts(), np.empty_like(x)
        loop = self._loop("spmv")
        return lambda: loop(starts, columns, values, x, y)

    def spmv_coo(self, kernel: catalog.SpmvCoo) -> Run:
        values, x = host_array(kernel.values, kernel.dtype), host_array(kernel.x, kernel.dtype)
        columns = kernel.columns(np.arange(kernel.size)).reshape(-1)
        rows, y = kernel.rows(), np.empty_like(x)
        loop = self._loop("spmv_coo")
        parts = self._numba.get_num_threads() if self.style == "parallel" else 1
        return lambda: loop(rows, columns, values, x, y, parts)

    def triad(self, kernel: catalog.Triad) -> Run:
        b, c = host_array(kernel.b, kernel.dtype), host_array(kernel.c, kernel.dtype)
        a, scalar = np.empty_like(b), b.dtype.type(catalog.SCALAR)
        loop = self._loop("triad")
        return lambda: loop(a, b, c, scalar)

    def stencil(self, kernel: catalog.Stencil) -> Run:
        u = host_array(kernel.u, kernel.dtype)
        v = np.empty((kernel.inner,) * 3, u.dtype)
        centre, neighbour = u.dtype.type(catalog.CENTRE), u.dtype.type(catalog.NEIGHBOUR)
        loop = self._loop("stencil")
        return lambda: loop(u, v, centre, neighbour)

    def montecarlo(self, kernel: catalog.MonteCarlo) -> Run:
        """Other points in each run: the seed moves on by more than the points used."""
        real = self._numba.float64 if kernel.dtype.name == "fp64" else self._numba.float32
        loop = self._loop("montecarlo", real)
        seeds = iter(range(1, 2**62, 2 * kernel.size + 1))
        return lambda: 4 * loop(kernel.size, next(seeds) % 2**31) / kernel.size

    def dist(self, kernel: catalog.Dist) -> Run:
        x = host_array(kernel.x, kernel.dtype)
        r = np.empty(kernel.size, x.dtype)
        loop = self._loop("dist")
        return lambda: loop(x, r)

    def elements(self, result: Any, flat_indices: Array) -> Array:
        return np.asarray(result, dtype=np.float64).reshape(-1)[flat_indices]

    def _loop(self, name: str, *types: Any) -> Callable[..., Any]:
        from wattloop.kernels.backends import numba_kernels

        known = (name, *types)
        if known not in self._loops:
            function: Callable[..., Any] = getattr(numba_kernels, name)
            self._loops[known] = self._numba.njit(
                function(*types) if types else function,
                fastmath=self.style != "scalar",
                parallel=self.style == "parallel",
                error_model="numpy",
                nogil=True,
            )
        self.compiled[name] = self._loops[known]
        return self._loops[known]


def packed_instructions(assembly: str) -> list[str]:
    """Instructions in `assembly` that compute on several floats at once (x86 and ARM)."""
    return PACKED_X86.findall(assembly) + PACKED_ARM.findall(assembly)


def _vectorisers_off(numba: Any) -> bool:
    return not numba.config.LOOP_VECTORIZE and not numba.config.SLP_VECTORIZE
