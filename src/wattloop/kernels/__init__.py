"""The six kernels of the thesis (section 3.4) on every framework that is installed."""

from wattloop.kernels.loaded_kernel import LoadedKernel, load
from wattloop.kernels.registry import BACKENDS, KERNELS, kernel_named

__all__ = ["BACKENDS", "KERNELS", "LoadedKernel", "kernel_named", "load"]
