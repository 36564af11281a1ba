"""JAX: every kernel is one function compiled by XLA."""

from typing import Any, ClassVar

import numpy as np

from wattloop.kernels import catalog
from wattloop.kernels.backend import Array, Backend, BackendUnavailable, Run
from wattloop.kernels.backends.numpy_backend import neighbours
from wattloop.kernels.kernel import Kernel, Operand

CHUNK = {"cpu": 2**20, "gpu": 2**26}
"""Random points drawn at a time."""


class JaxBackend(Backend):
    """Pure functions under `jax.jit`.

    fp64 switches JAX's 64-bit mode on for the whole process: JAX has no other way.
    """

    name, package, extra = "jax", "jax", "jax"
    devices = ("cpu", "gpu")
    styles = ("jit",)
    dtypes = ("fp64", "fp32", "tf32", "bf16", "fp16")
    methods: ClassVar = {
        "gemm": "jnp.matmul",
        "spmv": "gather and row sums, fused",
        "triad": "one fused loop",
        "stencil": "slices, fused",
        "montecarlo": "jax.random.uniform (threefry)",
        "dist": "squares, sum and root, fused",
    }

    def _start(self) -> None:
        import jax

        self._jax = jax
        try:
            self._place = jax.devices(self.device)[0]
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise BackendUnavailable(
                f"jax {jax.__version__} sees no {self.device} ({reason}); pip install 'jax[cuda13]'"
            ) from None

    def prepare(self, kernel: Kernel) -> Run:
        if kernel.dtype.name == "fp64":
            self._jax.config.update("jax_enable_x64", True)
        return super().prepare(kernel)

    def gemm(self, kernel: catalog.Gemm) -> Run:
        """XLA's default on a GPU is TF32; fp32 has to be asked for."""
        jax, jnp = self._jax, self._jax.numpy
        precision = "highest" if kernel.dtype.name in ("fp32", "fp64") else "default"
        a, b = self._array(kernel.a), self._array(kernel.b)
        product = jax.jit(lambda a, b: jnp.matmul(a, b, precision=precision))
        return lambda: product(a, b)

    def spmv(self, kernel: catalog.Spmv) -> Run:
        """Rows are equally long, so XLA can fuse gather, product and sum."""
        jax, jnp = self._jax, self._jax.numpy
        values = self._array(kernel.values).reshape(-1, catalog.PER_ROW)
        columns = jax.device_put(kernel.columns(np.arange(kernel.size)), self._place)
        x = self._array(kernel.x)

        def product(values: Any, columns: Any, x: Any) -> Any:
            gathered = x.at[columns].get(mode="promise_in_bounds")
            return jnp.sum(values * gathered, axis=1, dtype=_sum_dtype(x)).astype(x.dtype)

        compiled = jax.jit(product)
        return lambda: compiled(values, columns, x)

    def triad(self, kernel: catalog.Triad) -> Run:
        b, c = self._array(kernel.b), self._array(kernel.c)
        compiled = self._jax.jit(lambda b, c: b + catalog.SCALAR * c)
        return lambda: compiled(b, c)

    def stencil(self, kernel: catalog.Stencil) -> Run:
        u = self._array(kernel.u)
        compiled = self._jax.jit(
            lambda u: catalog.NEIGHBOUR * sum(neighbours(u)) + catalog.CENTRE * u[1:-1, 1:-1, 1:-1]
        )
        return lambda: compiled(u)

    def montecarlo(self, kernel: catalog.MonteCarlo) -> Run:
        jax, jnp = self._jax, self._jax.numpy
        chunk = min(CHUNK[self.device], kernel.size)
        whole, rest = divmod(kernel.size, chunk)
        dtype = jnp.float64 if kernel.dtype.name == "fp64" else jnp.float32
        keys = (jax.random.key(number) for number in range(2**31))

        def count(key: Any, points: int) -> Any:
            x, y = jax.random.uniform(key, (2, points), dtype)
            return jnp.sum(x * x + y * y <= 1, dtype=jnp.uint32)

        def estimate(key: Any) -> Any:
            def add(number: Any, total: Any) -> Any:
                return total + count(jax.random.fold_in(key, number), chunk)

            total = jax.lax.fori_loop(0, whole, add, jnp.uint32(0))
            if rest:
                total = total + count(jax.random.fold_in(key, whole), rest)
            return total

        compiled = jax.jit(estimate)

        def run() -> Any:
            with jax.default_device(self._place):
                return compiled(next(keys))

        self._scale = 4 / kernel.size
        return run

    def dist(self, kernel: catalog.Dist) -> Run:
        jax, jnp = self._jax, self._jax.numpy
        x = self._array(kernel.x)

        def norm(x: Any) -> Any:
            # written out: XLA turns a sum over a short first axis into a slow reduction
            lines = [line.astype(_sum_dtype(x)) for line in x]
            return jnp.sqrt(sum(line * line for line in lines)).astype(x.dtype)

        compiled = jax.jit(norm)
        return lambda: compiled(x)

    def elements(self, result: Any, flat_indices: Array) -> Array:
        """Picked on the device; a count becomes the estimate here, in float64."""
        if result.ndim == 0:
            return np.array([float(result) * self._scale])
        places = np.unravel_index(np.asarray(flat_indices), result.shape)
        return np.asarray(result[places]).astype(np.float64)

    def synchronise(self, result: Any) -> None:
        """The device works in order: when the last result is there, all are."""
        if result is not None:
            result.block_until_ready()

    def free_memory_b(self) -> int | None:
        statistics = self._statistics()
        if "bytes_limit" not in statistics:
            return None
        return int(statistics["bytes_limit"] - statistics.get("bytes_in_use", 0))

    def peak_memory_b(self) -> int | None:
        peak = self._statistics().get("peak_bytes_in_use")
        return None if peak is None else int(peak)

    def device_name(self) -> str:
        return str(self._place.device_kind) if self.device == "gpu" else ""

    def _statistics(self) -> dict[str, int]:
        return (self._place.memory_stats() or {}) if self.device == "gpu" else {}

    def _array(self, operand: Operand) -> Any:
        jax, jnp = self._jax, self._jax.numpy
        kinds = {"fp64": jnp.float64, "bf16": jnp.bfloat16, "fp16": jnp.float16}
        dtype = kinds.get(operand.dtype_name, jnp.float32)
        with jax.default_device(self._place):
            pattern = jax.device_put(operand.pattern.astype(dtype), self._place)
            return jnp.resize(pattern, operand.shape).block_until_ready()


def _sum_dtype(x: Any) -> Any:
    return np.float64 if x.dtype.itemsize == 8 else np.float32
