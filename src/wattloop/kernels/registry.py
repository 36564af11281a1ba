"""Registry of kernels and frameworks, and a fixed amount of work for comparing settings."""

import importlib
import importlib.util
import sys

from wattloop.core.errors import ConfigError
from wattloop.hardware.host import Host
from wattloop.kernels.backend import Backend
from wattloop.kernels.catalog import Dist, Gemm, MonteCarlo, Spmv, SpmvCoo, Stencil, Triad
from wattloop.kernels.device import chosen_device
from wattloop.kernels.kernel import Kernel, dtype_named

KERNELS: dict[str, type[Kernel]] = {
    kernel.name: kernel for kernel in (Gemm, Spmv, Triad, Stencil, MonteCarlo, Dist)
}

FURTHER: dict[str, type[Kernel]] = {SpmvCoo.name: SpmvCoo}
"""Kernels that are run where they are named; not every framework has them."""

BACKENDS: dict[str, str] = {
    "numpy": "NumpyBackend",
    "numba": "NumbaBackend",
    "torch": "TorchBackend",
    "jax": "JaxBackend",
    "cupy": "CupyBackend",
    "tensorflow": "TensorflowBackend",
}
"""Name -> class in `backends/NAME_backend.py`; imported when it is used."""


def kernel_named(name: str) -> type[Kernel]:
    """Return a kernel by name. Raises ConfigError, with the known names."""
    known = KERNELS | FURTHER
    if name not in known:
        raise ConfigError(f"unknown kernel '{name}'; known are {', '.join(known)}")
    return known[name]


def backend_named(name: str) -> type[Backend]:
    """Return the class of a framework, which is not imported. Raises ConfigError."""
    if name not in BACKENDS:
        raise ConfigError(f"unknown backend '{name}'; known are {', '.join(BACKENDS)}")
    module = importlib.import_module(f"wattloop.kernels.backends.{name}_backend")
    found: type[Backend] = getattr(module, BACKENDS[name])
    return found


def parse_size(kernel: type[Kernel], size: int | str) -> int:
    """A number, or one of the kernel's named sizes. Raises ConfigError: neither."""
    if isinstance(size, str) and size in kernel.sizes:
        return kernel.sizes[size]
    try:
        number = float(size)
    except ValueError:
        number = float("nan")
    if not number.is_integer():
        raise ConfigError(
            f"{kernel.name}: unknown size '{size}'; known are "
            + ", ".join(f"{name} ({value})" for name, value in kernel.sizes.items())
            + f", or a number: {kernel.size_means}"
        )
    return int(number)


SECONDS = 10.0
NOMINAL = {"cpu": (10e9, 5e9), "gpu": (40e12, 2e12)}
"""FLOP/s and B/s of a middling device, which only decide how many runs are a sensible number."""
DRAWING = 60.0
"""Drawing a random point costs about so many times its four operations."""
DEFAULT_SIZE = {"cpu": "small", "gpu": "large"}


def work_command(kernel: str, backend: str = "", device: str = "") -> list[str]:
    """Return the program that does about ten seconds of a kernel on a middling device.

    How many runs that is depends on the kernel and its size only, never on a measurement: the same
    words are the same work on every setting and whenever a sweep is resumed.
    """
    kind = chosen_device(device, Host.from_environment()).kind
    framework = backend or usual_backend(kind)
    backend_named(framework)
    problem_kind = kernel_named(kernel)
    problem = problem_kind(parse_size(problem_kind, DEFAULT_SIZE[kind]), dtype_named("fp32"))
    words = [sys.executable, "-m", "wattloop.kernels", kernel, framework, "--device", kind]
    runs = nominal_runs(problem, kind, SECONDS)
    return [*words, "--size", str(problem.size), "--runs", str(runs)]


def nominal_runs(kernel: Kernel, device: str, seconds: float) -> int:
    """Runs that fill so many seconds on a middling device."""
    flop_s, byte_s = NOMINAL[device]
    factor = 1.0 if kernel.bytes_moved else DRAWING
    each_s = max(factor * kernel.flops / flop_s, kernel.bytes_moved / byte_s)
    return max(1, round(seconds / each_s))


def usual_backend(device: str) -> str:
    """The first framework that is installed and knows the device; numpy on a CPU."""
    for name in BACKENDS:
        backend = backend_named(name)
        if device in backend.devices and importlib.util.find_spec(backend.package) is not None:
            return name
    return "torch"
