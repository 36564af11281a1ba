"""Which GPU a calibration measures, as options name it."""

from wattloop.core.errors import ConfigError

__all__ = ["CPU", "device_of"]

CPU = "cpu"


def device_of(gpu: str) -> str:
    """The name that torch has for it."""
    if gpu == CPU:
        return CPU
    if not gpu.isdecimal():
        raise ConfigError(f"--gpu {gpu}: give the GPU's number, such as 0 (see 'nvidia-smi')")
    return f"cuda:{int(gpu)}"
