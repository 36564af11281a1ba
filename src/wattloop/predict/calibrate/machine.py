"""What a collection says of the machine it was taken on."""

import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from wattloop.core.errors import ConfigError, MeterUnavailable
from wattloop.measure.meter import Context
from wattloop.measure.meters import amd_gpu
from wattloop.predict.calibrate.bench import Bench
from wattloop.predict.calibrate.host import probe
from wattloop.predict.calibrate.sensor import MeterSensor, NvmlSensor, Sensor

__all__ = ["machine_record", "open_device", "open_sensor"]

GPU_POOL_BYTES = 6e9
CPU_POOL_BYTES = 3.2e7
L2_TIMES = 3.0


def open_device(device: str) -> Bench:
    """A bench on `cuda:N` (ROCm calls its devices so as well), or on `cpu` to try the program.

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
        return Bench("cpu", CPU_POOL_BYTES, 0)
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
    return Bench(f"cuda:{number}", pool_bytes, L2_TIMES * l2_bytes)


def open_sensor(bench: Bench) -> Sensor:
    """The readings of the bench's GPU."""
    if not bench.on_gpu:
        return Sensor("on the CPU nothing is metered")
    index = bench.device.index or 0
    if bench.torch.version.hip:
        return _amd_sensor(index)
    properties = bench.torch.cuda.get_device_properties(bench.device)
    return NvmlSensor(index, str(getattr(properties, "uuid", "")))


def _amd_sensor(index: int) -> Sensor:
    try:
        return MeterSensor(amd_gpu.detect(Context()), index)
    except MeterUnavailable as error:
        return Sensor(str(error))


def machine_record(bench: Bench, sensor: Sensor) -> Mapping[str, object]:
    """GPU, driver, versions, and how quick the host is: a calibration holds for these."""
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
