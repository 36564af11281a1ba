"""Registry of kernels and frameworks."""

import importlib

from wattloop.core.errors import ConfigError
from wattloop.kernels.backend import Backend
from wattloop.kernels.dist import Dist
from wattloop.kernels.gemm import Gemm
from wattloop.kernels.kernel import Kernel
from wattloop.kernels.montecarlo import MonteCarlo
from wattloop.kernels.spmv import Spmv
from wattloop.kernels.stencil import Stencil
from wattloop.kernels.triad import Triad

KERNELS: dict[str, type[Kernel]] = {
    kernel.name: kernel for kernel in (Gemm, Spmv, Triad, Stencil, MonteCarlo, Dist)
}

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
    if name not in KERNELS:
        raise ConfigError(f"unknown kernel '{name}'; known are {', '.join(KERNELS)}")
    return KERNELS[name]


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
