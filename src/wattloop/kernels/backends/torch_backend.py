"""PyTorch: as people write it (`eager`), or through `torch.compile` (`compiled`)."""

import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from wattloop.kernels import catalog
from wattloop.kernels.backend import Array, Backend, BackendUnavailable, Run, Unsupported, chunks
from wattloop.kernels.backends.numpy_backend import neighbours
from wattloop.kernels.kernel import Kernel, Operand

CHUNK = {"cpu": 2**20, "gpu": 2**27}
"""Random points drawn at a time."""


class TorchBackend(Backend):
    """Operations into tensors that are already there."""

    name, package, extra = "torch", "torch", "torch"
    devices = ("cpu", "gpu")
    styles = ("eager", "compiled")
    dtypes = ("fp64", "fp32", "tf32", "bf16", "fp16")
    methods: ClassVar = {
        "gemm": "torch.matmul",
        "spmv": "sparse CSR @ vector",
        "spmv_coo": "sparse COO @ vector",
        "triad": "torch.add(b, c, alpha=s)",
        "stencil": "sums of slices",
        "montecarlo": "Tensor.uniform_",
        "dist": "linalg.vector_norm (CPU: addcmul_)",
    }

    def _start(self) -> None:
        import torch

        self._torch = torch
        if self.device == "gpu" and not torch.cuda.is_available():
            raise BackendUnavailable(
                f"torch {torch.__version__} sees no GPU; check 'nvidia-smi' and that torch is a "
                "CUDA build (pip install torch)"
            )
        self._place = torch.device("cuda" if self.device == "gpu" else "cpu")
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        if self.device == "gpu":
            torch.cuda.reset_peak_memory_stats()

    def prepare(self, kernel: Kernel) -> Run:
        """Without gradients; TF32 only where it is asked for."""
        torch = self._torch
        if self.device == "gpu":
            torch.backends.cuda.matmul.allow_tf32 = kernel.dtype.name == "tf32"
        run = super().prepare(kernel)

        def without_gradients() -> Any:
            with torch.inference_mode():
                return run()

        return without_gradients

    def gemm(self, kernel: catalog.Gemm) -> Run:
        torch = self._torch
        a, b = self._array(kernel.a), self._array(kernel.b)
        c = torch.empty_like(a)
        if self.style == "compiled":
            product = self._compiled(torch.matmul)
            return lambda: product(a, b)
        return lambda: torch.matmul(a, b, out=c)

    def spmv(self, kernel: catalog.Spmv) -> Run:
        torch = self._torch
        self._eager_only(kernel)
        if self.device == "cpu" and kernel.dtype.itemsize < 4:
            raise Unsupported("torch has no sparse product in half precision on a CPU")
        columns = kernel.columns(np.arange(kernel.size)).reshape(-1)
        with warnings.catch_warnings():
            # "Sparse CSR tensor support is in beta state", once per process
            warnings.simplefilter("ignore", UserWarning)
            matrix = torch.sparse_csr_tensor(
                torch.from_numpy(kernel.row_starts()).to(self._place),
                torch.from_numpy(columns).to(self._place),
                self._array(kernel.values),
                size=(kernel.size, kernel.size),
                check_invariants=False,
            )
        x = self._array(kernel.x)
        return lambda: torch.mv(matrix, x)

    def spmv_coo(self, kernel: catalog.SpmvCoo) -> Run:
        torch = self._torch
        self._eager_only(kernel)
        if self.device == "cpu" and kernel.dtype.itemsize < 4:
            raise Unsupported("torch has no sparse product in half precision on a CPU")
        columns = kernel.columns(np.arange(kernel.size)).reshape(-1)
        places = torch.from_numpy(np.stack((kernel.rows(), columns))).to(self._place)
        shape = (kernel.size, kernel.size)
        matrix = torch.sparse_coo_tensor(
            places, self._array(kernel.values), shape, is_coalesced=True, check_invariants=False
        )
        x = self._array(kernel.x)
        return lambda: torch.mv(matrix, x)

    def triad(self, kernel: catalog.Triad) -> Run:
        torch = self._torch
        b, c = self._array(kernel.b), self._array(kernel.c)
        a = torch.empty_like(b)
        if self.style == "compiled":
            triad = self._compiled(lambda a, b, c: a.copy_(b + catalog.SCALAR * c))
            return lambda: triad(a, b, c)
        return lambda: torch.add(b, c, alpha=catalog.SCALAR, out=a)

    def stencil(self, kernel: catalog.Stencil) -> Run:
        torch = self._torch
        u = self._array(kernel.u)
        v = torch.empty((kernel.inner,) * 3, dtype=u.dtype, device=u.device)

        def step(v: Any, u: Any) -> Any:
            first, second, *others = neighbours(u)
            torch.add(first, second, out=v)
            for other in others:
                v.add_(other)
            return v.mul_(catalog.NEIGHBOUR).add_(u[1:-1, 1:-1, 1:-1], alpha=catalog.CENTRE)

        def fused(v: Any, u: Any) -> Any:
            total = sum(neighbours(u)) * catalog.NEIGHBOUR
            return v.copy_(total + u[1:-1, 1:-1, 1:-1] * catalog.CENTRE)

        chosen = self._compiled(fused) if self.style == "compiled" else step
        return lambda: chosen(v, u)

    def montecarlo(self, kernel: catalog.MonteCarlo) -> Run:
        torch = self._torch
        self._eager_only(kernel)
        chunk = min(CHUNK[self.device], kernel.size)
        dtype = self._dtype(kernel.dtype.name)
        x = torch.empty(chunk, dtype=dtype, device=self._place)
        y = torch.empty_like(x)
        inside = torch.empty(chunk, dtype=torch.bool, device=self._place)
        parts = chunks(kernel.size, chunk)

        def run() -> Any:
            count = torch.zeros((), dtype=torch.int64, device=self._place)
            for part in parts:
                a, b = x[:part].uniform_(), y[:part].uniform_()
                a.mul_(a).addcmul_(b, b)
                count += torch.le(a, 1, out=inside[:part]).sum()
            return count.to(torch.float64) * (4 / kernel.size)

        return run

    def dist(self, kernel: catalog.Dist) -> Run:
        torch = self._torch
        x = self._array(kernel.x)
        r = torch.empty(kernel.size, dtype=x.dtype, device=x.device)
        if self.style == "compiled":
            wide = torch.float64 if x.dtype == torch.float64 else torch.float32
            norm = self._compiled(lambda r, x: r.copy_(sum(v * v for v in x.to(wide)).sqrt()))
            return lambda: norm(r, x)
        if self.device == "gpu":
            return lambda: torch.linalg.vector_norm(x, dim=0, out=r)

        def norm_on_cpu() -> Any:
            # vector_norm over a short first axis is 50 times slower on a CPU
            torch.mul(x[0], x[0], out=r)
            for line in x[1:]:
                r.addcmul_(line, line)
            return r.sqrt_()

        return norm_on_cpu

    def elements(self, result: Any, flat_indices: Array) -> Array:
        where = self._torch.from_numpy(np.asarray(flat_indices, dtype=np.int64)).to(self._place)
        picked = result.reshape(-1).index_select(0, where)
        return np.asarray(picked.to(self._torch.float64).cpu())

    def synchronise(self, result: Any) -> None:
        if self.device == "gpu":
            self._torch.cuda.synchronize()

    def free_memory_b(self) -> int | None:
        return int(self._torch.cuda.mem_get_info()[0]) if self.device == "gpu" else None

    def peak_memory_b(self) -> int | None:
        if self.device != "gpu":
            return None
        return int(self._torch.cuda.max_memory_allocated())

    def device_name(self) -> str:
        return str(self._torch.cuda.get_device_name()) if self.device == "gpu" else ""

    def close(self) -> None:
        if self.device == "gpu":
            self._torch.cuda.empty_cache()
            self._torch.cuda.reset_peak_memory_stats()

    def _dtype(self, name: str) -> Any:
        torch = self._torch
        names = {"fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}
        return names.get(name, torch.float32)

    def _array(self, operand: Operand) -> Any:
        torch = self._torch
        pattern = torch.from_numpy(operand.pattern).to(self._place, self._dtype(operand.dtype_name))
        times = -(-operand.length // len(pattern))
        # a copy of its own: the repeated pattern is longer, and would stay in memory
        return pattern.repeat(times)[: operand.length].clone().reshape(operand.shape)

    def _compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        compiled: Callable[..., Any] = self._torch.compile(function, fullgraph=True, dynamic=False)
        return compiled

    def _eager_only(self, kernel: Kernel) -> None:
        if self.style == "compiled":
            raise Unsupported(f"torch.compile leaves {kernel.name} to the library; use eager")
