"""Machine under calibration: its description, and a check that its GPU is idle."""

import os
import platform
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from wattloop.core.errors import ConfigError, MeterUnavailable
from wattloop.core.units import format_bytes
from wattloop.meters import amd_gpu
from wattloop.meters.base import Context
from wattloop.predict.calibrate.device import CalibrationDevice
from wattloop.predict.calibrate.host import probe
from wattloop.predict.calibrate.sensor import GpuSensor, MeterGpuSensor, NvmlGpuSensor

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
