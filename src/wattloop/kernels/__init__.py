"""The six kernels of the thesis (section 3.4) on every framework that is installed.

- `kernel`, `dtypes`       the contract of a kernel; number formats
- `operand`                inputs that anybody can recompute
- `gemm`, `spmv`, `triad`, `stencil`, `montecarlo`, `dist`   maths, counts and check of each
- `backend`, `backends/`   the contract of a framework, and one file per framework
- `loading`                `load(kernel, backend, size)`: runs, checks and counts
- `timing`                 repetitions, batches, medians and their intervals
- `place`                  CPU or GPU
- `worker`, `launch`       the same in a process of its own, pinned and configured
- `__main__`, `work`       a fixed amount of work as a program, for sweeps

    kernel = load("gemm", "torch", "small", device="cpu")
    kernel.run()
    kernel.synchronise()
    kernel.check().ok, kernel.flops, kernel.bytes_moved
"""

from wattloop.kernels.loaded_kernel import LoadedKernel, load
from wattloop.kernels.registry import BACKENDS, KERNELS, kernel_named

__all__ = ["BACKENDS", "KERNELS", "LoadedKernel", "kernel_named", "load"]
