"""The device of kernels: the CPU, or one of the GPUs, by the driver's number."""

import os
from dataclasses import dataclass

from wattloop.core.errors import ConfigError, MeterUnavailable
from wattloop.hardware.host import Host
from wattloop.meters.nvidia import open_nvml, shut_down


@dataclass(frozen=True)
class Device:
    """The device of kernels; `gpu` is the driver's number of the GPU."""

    kind: str
    gpu: int | None = None

    def __str__(self) -> str:
        return "cpu" if self.gpu is None else f"gpu:{self.gpu}"


def chosen_device(text: str, host: Host) -> Device:
    """`cpu`, `gpu` (the first one), `gpu:1`; empty takes a GPU where there is one.

    Raises:
        ConfigError: no such device.
    """
    kind, _, number = text.partition(":")
    if kind not in ("", "cpu", "gpu") or (number and not (kind == "gpu" and number.isdecimal())):
        raise ConfigError(f"--device {text}: use cpu, gpu or a number such as gpu:0")
    if kind == "cpu":
        return Device("cpu")
    count = gpu_count(host)
    wanted = int(number) if number else _first_visible()
    if not kind and (not count or wanted is None or wanted >= count):
        return Device("cpu")
    if count is None:
        # a GPU without NVIDIA's library: frameworks may still know it
        return Device("gpu", wanted or 0)
    if wanted is None or wanted >= count:
        has = f"GPU numbers go up to {count - 1}" if count else "no GPU was found"
        raise ConfigError(f"--device {text}: {has} here; see 'wattloop devices', or use cpu")
    return Device("gpu", wanted)


def gpu_count(host: Host) -> int | None:
    """NVIDIA GPUs of this machine; 0 without any, None when only the library is missing."""
    try:
        nvml = open_nvml(host)
    except MeterUnavailable:
        return None if (host.sysfs / "class" / "kfd").exists() else 0
    try:
        return int(nvml.nvmlDeviceGetCount())
    finally:
        shut_down(nvml)


def _first_visible() -> int | None:
    text = os.environ.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return 0
    first = text.split(",")[0].strip()
    return int(first) if first.isdecimal() else (0 if first.startswith("GPU-") else None)
