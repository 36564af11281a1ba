"""NVIDIA's management library (NVML) through nvidia-ml-py: initialisation, errors and remedies."""

import contextlib
import os
import threading
from typing import Any

from wattloop.core.errors import MeterUnavailable
from wattloop.core.records import Gap
from wattloop.hardware.host import Host
from wattloop.hardware.sysfs_file import read_text

LIBRARY = "libnvidia-ml.so.1"


NVIDIA_VENDOR = "0x10de"


LIBRARY_VARIABLE = "WATTLOOP_NVML_LIBRARY"


SHUTDOWN_PATIENCE_S = 1.0


POWER_INSTANT_FIELD = 186
"""NVML_FI_DEV_POWER_INSTANT: 38 us a read on an H200, new every 100 ms, no lag."""


# nvmlReturn_t; the numbers are part of the library's ABI.
INVALID_ARGUMENT = 2


NOT_SUPPORTED = 3


NO_PERMISSION = 4


FUNCTION_NOT_FOUND = 13


GPU_IS_LOST = 15


RESET_REQUIRED = 16


_MEANING: dict[int, tuple[str, str]] = {
    1: ("the library is not initialised", ""),
    INVALID_ARGUMENT: ("this driver does not know the request", "update the NVIDIA driver"),
    NOT_SUPPORTED: ("this card or driver does not support the call", ""),
    NO_PERMISSION: (
        "permission denied",
        "add the user to the group that owns /dev/nvidia* ('ls -l /dev/nvidia*') or run as root",
    ),
    8: ("the card's external power cables are not attached", "attach them"),
    9: ("the NVIDIA driver is not loaded", "load it with 'sudo modprobe nvidia'"),
    10: ("the driver timed out", ""),
    11: ("the kernel reports an interrupt problem with the card", "see 'dmesg | grep -i nvrm'"),
    FUNCTION_NOT_FOUND: ("this driver's library lacks the call", "update the NVIDIA driver"),
    GPU_IS_LOST: ("the GPU has fallen off the bus", "see 'dmesg | grep -i xid'; reboot"),
    RESET_REQUIRED: ("the GPU requires a reset", "run 'sudo nvidia-smi --gpu-reset'"),
    17: ("the operating system blocks the card", "check the container's device cgroup"),
    18: (
        "the driver in the kernel and the library have different versions",
        "reboot, or reload the driver with 'sudo rmmod nvidia && sudo modprobe nvidia'",
    ),
    999: ("the driver reports an unknown error", "see 'dmesg | grep -i nvrm'"),
}


UNSUPPORTED = frozenset({INVALID_ARGUMENT, NOT_SUPPORTED, FUNCTION_NOT_FOUND})


_PERMANENT = UNSUPPORTED | {NO_PERMISSION, GPU_IS_LOST, RESET_REQUIRED}


def open_nvml(host: Host) -> Any:
    """Return the initialised `pynvml` module; `shut_down` releases it.

    Raises:
        MeterUnavailable: without a driver this takes under 2 ms, since nvidia-ml-py (40 ms to
            import) is loaded only when its library is there.
    """
    path = os.environ.get(LIBRARY_VARIABLE) or LIBRARY
    _require_library(path, host)
    try:
        import pynvml
    except ImportError:
        raise MeterUnavailable(
            "nvidia",
            "the package nvidia-ml-py is missing",
            "run 'pip install nvidia-ml-py'",
            ("gpu",),
        ) from None
    if path != LIBRARY and getattr(pynvml.nvmlLib, "_name", None) != path:
        import ctypes

        pynvml.nvmlLib = ctypes.CDLL(path)
        pynvml._nvmlGetFunctionPointer_cache.clear()
    try:
        pynvml.nvmlInit()
        pynvml.nvmlDeviceGetCount()  # a driver that is half gone shows here, not later
    except pynvml.NVMLError as error:
        reason, remedy = explain(error)
        raise MeterUnavailable("nvidia", reason, remedy, parts=("gpu",)) from None
    return pynvml


def shut_down(nvml: Any) -> None:
    """Release the library; a driver that hangs delays this by a second at most."""

    def quietly() -> None:
        # An error means "already shut down" or "the driver is gone": nothing left to release.
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()

    thread = threading.Thread(target=quietly, name="wattloop-nvml-shutdown", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return  # the interpreter is going down; the kernel releases the files
    thread.join(SHUTDOWN_PATIENCE_S)


def error_code(error: Exception) -> int:
    """Return the nvmlReturn_t of an NVMLError."""
    return int(getattr(error, "value", 999))


def is_unsupported(error: Exception) -> bool:
    """Return True if the card will never answer this call."""
    return error_code(error) in UNSUPPORTED


def explain(error: Exception) -> tuple[str, str]:
    """Explain an error and its remedy."""
    code = error_code(error)
    return _MEANING.get(code, (f"NVML error {code}", ""))


def gap(domain: str, code: int) -> Gap:
    """Return the gap for an error."""
    reason, _ = _MEANING.get(code, (f"NVML error {code}", ""))
    return Gap(f"{domain}: {reason}", lost=code in _PERMANENT)


def _require_library(path: str, host: Host) -> None:
    # `ctypes` takes 4 ms to import, its C half 0.6 ms; most machines only need the answer "no".
    import _ctypes

    try:
        _ctypes.dlopen(path, os.RTLD_LAZY)
    except OSError as error:
        raise _no_library(path, str(error), host) from None


def _no_library(path: str, error: str, host: Host) -> MeterUnavailable:
    if path != LIBRARY:
        remedy = f"{LIBRARY_VARIABLE} must name a {LIBRARY}"
        return MeterUnavailable("nvidia", f"{path} cannot be loaded ({error})", remedy, ("gpu",))
    if (host.procfs / "driver/nvidia/version").exists():
        return MeterUnavailable(
            "nvidia",
            f"the NVIDIA driver is loaded but {LIBRARY} is not found",
            "in a container use '--gpus all' and NVIDIA_DRIVER_CAPABILITIES=compute,utility; "
            f"elsewhere set {LIBRARY_VARIABLE} to its path",
            ("gpu",),
        )
    vendors = host.sysfs.glob("class/drm/card*/device/vendor")
    if any(read_text(vendor) == NVIDIA_VENDOR for vendor in vendors):
        remedy = "install NVIDIA's driver; the open nouveau driver has no power readings"
        return MeterUnavailable(
            "nvidia", "an NVIDIA GPU is here but NVIDIA's driver is not", remedy, ("gpu",)
        )
    return MeterUnavailable("nvidia", f"no NVIDIA driver on this machine ({LIBRARY} not found)")
