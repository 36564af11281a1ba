"""A kernel on a framework, ready to run within the memory of the device."""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from wattloop.kernels.backend import Backend
from wattloop.kernels.kernel import Kernel, KernelCheck, dtype_named
from wattloop.kernels.registry import backend_named, kernel_named, parse_size


def available_b(procfs: Path = Path("/proc")) -> int | None:
    """Bytes that can be allocated without swapping; None if the kernel does not say."""
    return _field(procfs / "meminfo", "MemAvailable")


def peak_b(procfs: Path = Path("/proc")) -> int | None:
    """The most this process had in memory since it began, or since `forget_peak`."""
    return _field(procfs / "self" / "status", "VmHWM")


def forget_peak(procfs: Path = Path("/proc")) -> None:
    with suppress(OSError):
        (procfs / "self" / "clear_refs").write_text("5")


def _field(path: Path, name: str) -> int | None:
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB", path.read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if found is None else int(found[1]) * 1_024


class LoadedKernel:
    """Inputs in place, ready to run as often as wanted.

    `run` starts the work and may return before a GPU has done it: `synchronise` waits.
    """

    def __init__(self, kernel: Kernel, backend: Backend) -> None:
        self.kernel, self.backend = kernel, backend
        self.flops, self.bytes_moved = kernel.flops, kernel.bytes_moved
        self._result: Any = None
        self._run = backend.prepare(kernel)

    def run(self) -> None:
        self._result = self._run()

    def synchronise(self) -> None:
        self.backend.synchronise(self._result)

    def check(self) -> KernelCheck:
        """Check the last result; runs once if there is none."""
        if self._result is None:
            self.run()
        self.synchronise()
        indices = self.kernel.sample()
        return self.kernel.judge(self.backend.elements(self._result, indices), indices)

    def close(self) -> None:
        self._result = None
        del self._run
        self.backend.close()


def load(
    kernel: str,
    backend: str,
    size: int | str = "small",
    *,
    dtype: str = "fp32",
    device: str = "cpu",
    style: str = "",
    threads: int | None = None,
) -> LoadedKernel:
    """Put a kernel's inputs in place, at a number or a named size (`small` to `huge`).

    Raises:
        ConfigError: unknown name, wrong size, or more memory than there is.
        BackendUnavailable: not installed, or no such device; the message says what to do.
        Unsupported: not in this format or place.
    """
    kind = kernel_named(kernel)
    problem = kind(parse_size(kind, size), dtype_named(dtype))
    framework = backend_named(backend)(device=device, style=style, threads=threads)
    framework.accepts(problem)
    problem.check_memory(framework.free_memory_b() if device == "gpu" else available_b(), device)
    return LoadedKernel(problem, framework)
