"""Machine under calibration: its device and tensors, its description, a check that it is idle."""

import math
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Self

from wattloop.core.errors import ConfigError, MeterUnavailable
from wattloop.core.units import format_bytes
from wattloop.meters import amd_gpu
from wattloop.meters.base import Context
from wattloop.predict.calibrate.gpu_sensor import GpuSensor, MeterGpuSensor, NvmlGpuSensor

TIMING_ROUNDS = 7
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


def probe(bench: CalibrationDevice) -> Mapping[str, object]:
    """Measure the speed of this host within a second: plain Python, CPU dispatch, launches."""
    torch = bench.torch
    small = torch.ones(8)
    remote = torch.ones(8, device=bench.device)

    def python() -> None:
        total = 0
        for number in range(10_000):
            total += number % 7

    return {
        "python_loop_s": median_seconds(bench, python, 5),
        "cpu_add_s": median_seconds(bench, lambda: torch.add(small, small), 1000),
        "gpu_add_s": median_seconds(bench, lambda: torch.add(remote, remote), 300),
    }


def median_seconds(bench: CalibrationDevice, call: Callable[[], Any], repeats: int) -> float:
    for _ in range(3):
        call()
    times = []
    for _ in range(TIMING_ROUNDS):
        bench.synchronize()
        begin = time.perf_counter()
        for _ in range(repeats):
            call()
        times.append((time.perf_counter() - begin) / repeats)
    bench.synchronize()
    return statistics.median(times)


GPU_POOL_BYTES = 6e9
CPU_POOL_BYTES = 3.2e7
L2_TIMES = 3.0


def open_device(device: str) -> CalibrationDevice:
    """Open `cuda:N` (the name on ROCm, too), or `cpu` to test the program.

    Raises:
        ConfigError: torch is missing, or sees no such GPU.
    """
    try:
        import torch
    except ImportError:
        raise ConfigError(
            "calibrate needs PyTorch; run 'pip install wattloop[torch]' "
            "(and 'pip install wattloop[hf]' for the transformer models among the steps)"
        ) from None
    if device == "cpu":
        return CalibrationDevice("cpu", CPU_POOL_BYTES, 0)
    if not torch.cuda.is_available():
        raise ConfigError(
            "calibrate needs a GPU and torch sees none here; check 'nvidia-smi' and that torch is "
            f"a build for CUDA or ROCm (this one is {torch.__version__}). A GPU without "
            "calibration is predicted from its data sheet"
        )
    number = int(device.partition(":")[2] or 0)
    if number >= torch.cuda.device_count():
        raise ConfigError(
            f"--gpu {number}: torch sees {torch.cuda.device_count()} GPU(s), numbered from 0"
        )
    torch.cuda.set_device(number)
    properties = torch.cuda.get_device_properties(number)
    pool_bytes = min(GPU_POOL_BYTES, properties.total_memory / 12)
    l2_bytes = float(getattr(properties, "L2_cache_size", 0) or 6e7)
    return CalibrationDevice(f"cuda:{number}", pool_bytes, L2_TIMES * l2_bytes)


def open_sensor(bench: CalibrationDevice) -> GpuSensor:
    if not bench.on_gpu:
        return GpuSensor("on the CPU nothing is metered")
    index = bench.device.index or 0
    if bench.torch.version.hip:
        return _amd_sensor(index)
    properties = bench.torch.cuda.get_device_properties(bench.device)
    return NvmlGpuSensor(index, str(getattr(properties, "uuid", "")))


def _amd_sensor(index: int) -> GpuSensor:
    try:
        return MeterGpuSensor(amd_gpu.detect(Context()), index)
    except MeterUnavailable as error:
        return GpuSensor(str(error))


def machine_record(bench: CalibrationDevice, sensor: GpuSensor) -> Mapping[str, object]:
    """Return GPU, driver, versions and host speed, for which a calibration is valid."""
    torch = bench.torch
    record: dict[str, Any] = {
        "record": "machine",
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": "cpu",
        "torch": torch.__version__,
        "transformers": _version("transformers"),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "cpu": _cpu_name(),
        "sensor": sensor.reason or sensor.name,
        "probe": dict(probe(bench)),
    }
    if bench.on_gpu:
        properties = torch.cuda.get_device_properties(bench.device)
        record |= {
            "gpu": properties.name,
            "driver": sensor.driver(),
            "sms": properties.multi_processor_count,
            "memory_bytes": properties.total_memory,
            "l2_bytes": getattr(properties, "L2_cache_size", None),
            "power_limit_w": sensor.limit_w(),
            "cudnn": torch.backends.cudnn.version(),
        }
    return record


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_name() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or None)


FREE_SHARE = 0.5
"""Required share of free memory. Pools and the larger cases take a third."""
BUSY_SHARE = 0.2
"""Utilisation of a desktop is below this."""
LOOKS = 4
PAUSE_S = 0.2
"""The driver's utilisation covers the past sixth of a second to second."""


def check_at_rest(bench: CalibrationDevice, sensor: GpuSensor) -> None:
    """Refuse a GPU that other processes use.

    Raises:
        ConfigError: its memory is short, it is at work, or it cannot be used at all.
    """
    if not bench.on_gpu:
        return
    try:
        free_bytes, total_bytes = bench.torch.cuda.mem_get_info(bench.device)
    except RuntimeError as error:  # reserved for one process, or without memory for a context
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"--gpu {bench.device.index}: cannot be used ({reason}); see what runs on it with "
            "'nvidia-smi' or 'rocm-smi'"
        ) from None
    shares = []
    for look in range(LOOKS):
        if look:
            time.sleep(PAUSE_S)
        shares.append(sensor.busy_share())
    reason = refusal(free_bytes, total_bytes, shares)
    if reason:
        raise ConfigError(
            f"--gpu {bench.device.index}: {reason}; see what runs on it with 'nvidia-smi' or "
            "'rocm-smi', and wait for it to end or take another GPU"
        )


def refusal(free_bytes: float, total_bytes: float, busy_shares: list[float | None]) -> str:
    """Return why not to measure; empty when measuring is possible.

    A GPU is busy when every sample shows it: a program's start keeps it busy for a moment.
    """
    if free_bytes < FREE_SHARE * total_bytes:
        return (
            f"only {format_bytes(free_bytes)} of its {format_bytes(total_bytes)} of memory are "
            "free, and half are needed"
        )
    known = [share for share in busy_shares if share is not None]
    if known and min(known) > BUSY_SHARE:
        return f"it is busy {min(known):.0%} of the time with the work of others"
    return ""
