"""Device under calibration: its tensors and its precision."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

ALIGNMENT_BYTES = 256
"""Alignment of the caching allocator; kernels choose wider loads for it."""


@dataclass(slots=True)
class KernelCalls:
    """Kernel that can be called repeatedly.

    Attributes:
        calls: the same kernel on several sets of inputs, to be taken in turn.
        less: additional work of the calls, whose time is subtracted.
        note: facts from the device, such as the chosen algorithm.
    """

    calls: Sequence[Callable[[], Any]]
    less: Sequence[Callable[[], Any]] = ()
    note: dict[str, object] = field(default_factory=dict)


class CalibrationDevice:
    """Source of random tensors, cut from one large pool, so that building a case is cheap.

    As a context manager it frees memory and restores torch's settings at its end.

    Args:
        device: torch's name of it, such as `cuda:0` or `cpu`.
        pool_bytes: size of the pool of each number format.
        rotate_bytes: inputs are spread over at least so much memory, so that none is cached.
    """

    def __init__(self, device: str, pool_bytes: float, rotate_bytes: float) -> None:
        import torch

        self.torch = torch
        self.device = torch.device(device)
        self.rotate_bytes = rotate_bytes
        self._pool_bytes = pool_bytes
        self._pools: dict[Any, Any] = {}
        self._used: dict[Any, int] = {}
        self._tf32_before = (
            torch.backends.cuda.matmul.allow_tf32,
            torch.backends.cudnn.allow_tf32,
        )
        torch.manual_seed(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def on_gpu(self) -> bool:
        """Return whether work runs asynchronously to the host."""
        return str(self.device.type) != "cpu"

    @property
    def precisions(self) -> frozenset[str]:
        """Return the precisions in hardware; others are emulated slowly, or replaced by fp32."""
        plain = frozenset({"fp32", "fp16"})
        if not self.on_gpu:
            return plain | {"bf16", "tf32"}
        if self.torch.version.hip:
            return plain | {"bf16"}
        ampere = self.torch.cuda.get_device_capability(self.device) >= (8, 0)
        return plain | {"bf16", "tf32"} if ampere else plain

    def synchronize(self) -> None:
        if self.on_gpu:
            self.torch.cuda.synchronize(self.device)

    def free(self) -> None:
        """Free memory that is reserved for reuse; the pools stay."""
        if self.on_gpu:
            self.torch.cuda.empty_cache()

    def workspace_bytes(self, call: Callable[[], Any]) -> int | None:
        """Return the temporary memory of a call in addition to its result; None on the CPU.

        cuDNN's algorithms differ in it by gigabytes.
        """
        if not self.on_gpu:
            return None
        cuda = self.torch.cuda
        cuda.reset_peak_memory_stats(self.device)
        kept = call()
        held = int(cuda.memory_allocated(self.device))
        peak = int(cuda.max_memory_allocated(self.device))
        del kept
        return peak - held

    def close(self) -> None:
        """Free the pools too, and restore torch's precision."""
        self._pools.clear()
        self._used.clear()
        backends = self.torch.backends
        backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32 = self._tf32_before
        self.free()

    def precision(self, dtype: str) -> Any:
        """Set the precision of float32 products for `dtype`; return the type of its operands."""
        torch = self.torch
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        torch.backends.cudnn.allow_tf32 = dtype == "tf32"
        return torch_dtypes(torch)[dtype]

    def normal(self, shape: Sequence[int], dtype: Any) -> Any:
        """Return random numbers of mean 0 and variance 1: zeros would run faster and cooler."""
        number = math.prod(shape)
        pool = self._pool(dtype)
        if number > pool.numel():
            return self.torch.randn(tuple(shape), device=self.device, dtype=dtype)
        begin = self._used.get(dtype, 0)
        if begin + number > pool.numel():
            begin = 0
        step = ALIGNMENT_BYTES // pool.element_size()
        self._used[dtype] = begin + math.ceil(number / step) * step
        return pool[begin : begin + number].view(tuple(shape))

    def whole(self, high: int, shape: Sequence[int]) -> Any:
        return self.torch.randint(high, tuple(shape), device=self.device)

    def sets(
        self, make: Callable[[], Callable[[], Any]], set_bytes: float, most: int = 48
    ) -> KernelCalls:
        """Return as many sets of inputs as needed to keep each out of the cache."""
        number = min(most, max(1, math.ceil(self.rotate_bytes / max(set_bytes, 1))))
        return KernelCalls([make() for _ in range(number)])

    def _pool(self, dtype: Any) -> Any:
        if dtype not in self._pools:
            size = self.torch.empty((), dtype=dtype).element_size()
            number = int(self._pool_bytes // size)
            self._pools[dtype] = self.torch.randn(number, device=self.device, dtype=dtype)
        return self._pools[dtype]


def torch_dtypes(torch: Any) -> dict[str, Any]:
    """Map names of arithmetic to the type of the operands."""
    return {
        "fp32": torch.float32,
        "tf32": torch.float32,
        "bf16": torch.bfloat16,
        "fp16": torch.float16,
    }
