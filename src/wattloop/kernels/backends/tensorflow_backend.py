"""TensorFlow: functions compiled by XLA, library calls where XLA has none."""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from wattloop.kernels import catalog
from wattloop.kernels.backend import Array, Backend, BackendUnavailable, Run, Unsupported, chunks
from wattloop.kernels.backends.numpy_backend import neighbours
from wattloop.kernels.kernel import Kernel, Operand

CHUNK = {"cpu": 2**20, "gpu": 2**26}
"""Random points drawn at a time."""


class TensorflowBackend(Backend):
    """`tf.function(jit_compile=True)` for everything that is one expression."""

    name, package, extra = "tensorflow", "tensorflow", "tensorflow"
    devices = ("cpu", "gpu")
    styles = ("jit",)
    dtypes = ("fp64", "fp32", "tf32", "bf16", "fp16")
    methods: ClassVar = {
        "gemm": "tf.matmul",
        "spmv": "sparse_dense_matmul",
        "triad": "one fused loop",
        "stencil": "slices, fused",
        "montecarlo": "tf.random.Generator",
        "dist": "squares, sum and root, fused",
    }

    def _start(self) -> None:
        import tensorflow as tf

        self._tf = tf
        if self.device == "gpu" and not tf.config.list_physical_devices("GPU"):
            raise BackendUnavailable(
                f"tensorflow {tf.__version__} sees no GPU; pip install 'tensorflow[and-cuda]'"
            )
        self._place = "/GPU:0" if self.device == "gpu" else "/CPU:0"
        if self.threads is not None:
            try:
                tf.config.threading.set_intra_op_parallelism_threads(self.threads)
            except RuntimeError:
                # already at work: the process's CPUs are the limit then
                self.threads = None

    def prepare(self, kernel: Kernel) -> Run:
        tf = self._tf
        tf.config.experimental.enable_tensor_float_32_execution(kernel.dtype.name == "tf32")
        with tf.device(self._place):
            run = super().prepare(kernel)

        def placed() -> Any:
            with tf.device(self._place):
                return run()

        return placed

    def gemm(self, kernel: catalog.Gemm) -> Run:
        tf = self._tf
        a, b = self._array(kernel.a), self._array(kernel.b)
        return lambda: tf.matmul(a, b)

    def spmv(self, kernel: catalog.Spmv) -> Run:
        """A COO matrix, as the thesis has it; TensorFlow wants 64-bit indices."""
        tf = self._tf
        if kernel.dtype.itemsize < 4:
            raise Unsupported("tensorflow has no sparse product in half precision")
        rows = np.repeat(np.arange(kernel.size, dtype=np.int64), catalog.PER_ROW)
        columns = kernel.columns(np.arange(kernel.size)).reshape(-1).astype(np.int64)
        matrix = tf.sparse.SparseTensor(
            np.stack((rows, columns), axis=1),
            self._array(kernel.values),
            (kernel.size, kernel.size),
        )
        x = tf.reshape(self._array(kernel.x), (-1, 1))
        return lambda: tf.sparse.sparse_dense_matmul(matrix, x)

    def triad(self, kernel: catalog.Triad) -> Run:
        b, c = self._array(kernel.b), self._array(kernel.c)
        compiled = self._compiled(lambda b, c: b + catalog.SCALAR * c)
        return lambda: compiled(b, c)

    def stencil(self, kernel: catalog.Stencil) -> Run:
        u = self._array(kernel.u)
        compiled = self._compiled(
            lambda u: catalog.NEIGHBOUR * sum(neighbours(u)) + catalog.CENTRE * u[1:-1, 1:-1, 1:-1]
        )
        return lambda: compiled(u)

    def montecarlo(self, kernel: catalog.MonteCarlo) -> Run:
        tf = self._tf
        dtype = tf.float64 if kernel.dtype.name == "fp64" else tf.float32
        generator = tf.random.Generator.from_seed(1, alg="philox")
        chunk = min(CHUNK[self.device], kernel.size)
        parts = chunks(kernel.size, chunk)

        def count(points: Any) -> Any:
            x = generator.uniform((points,), dtype=dtype)
            y = generator.uniform((points,), dtype=dtype)
            return tf.math.count_nonzero(x * x + y * y <= 1)

        counted = tf.function(count)
        return lambda: tf.add_n([counted(tf.constant(part)) for part in parts]) * 4 / kernel.size

    def dist(self, kernel: catalog.Dist) -> Run:
        tf = self._tf
        x = self._array(kernel.x)
        wide = tf.float64 if kernel.dtype.name == "fp64" else tf.float32

        def norm(x: Any) -> Any:
            lines = [tf.cast(line, wide) for line in tf.unstack(x)]
            return tf.cast(tf.sqrt(sum(line * line for line in lines)), x.dtype)

        compiled = self._compiled(norm)
        return lambda: compiled(x)

    def elements(self, result: Any, flat_indices: Array) -> Array:
        tf = self._tf
        picked = tf.gather(tf.reshape(result, (-1,)), np.asarray(flat_indices))
        return np.asarray(tf.cast(picked, tf.float64))

    def synchronise(self, result: Any) -> None:
        if self.device == "gpu":
            self._tf.test.experimental.sync_devices()

    def peak_memory_b(self) -> int | None:
        if self.device != "gpu":
            return None
        return int(self._tf.config.experimental.get_memory_info("GPU:0")["peak"])

    def device_name(self) -> str:
        if self.device != "gpu":
            return ""
        tf = self._tf
        details = tf.config.experimental.get_device_details(
            tf.config.list_physical_devices("GPU")[0]
        )
        return str(details.get("device_name", "GPU"))

    def _array(self, operand: Operand) -> Any:
        tf = self._tf
        kinds = {"fp64": tf.float64, "bf16": tf.bfloat16, "fp16": tf.float16}
        pattern = tf.cast(operand.pattern, kinds.get(operand.dtype_name, tf.float32))
        times = -(-operand.length // len(operand.pattern))
        return tf.reshape(tf.tile(pattern, (times,))[: operand.length], operand.shape)

    def _compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        compiled: Callable[..., Any] = self._tf.function(function, jit_compile=True)
        return compiled
