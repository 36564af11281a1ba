"""The contract of a framework that runs the kernels."""

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from wattloop.core.errors import ConfigError, WattloopError
from wattloop.kernels.catalog import Dist, Gemm, MonteCarlo, Spmv, Stencil, Triad
from wattloop.kernels.kernel import Kernel

Array = Any
Run = Callable[[], Any]
"""Starts one run on inputs that are already in place; returns the (flattened) result."""


def chunks(size: int, longest: int) -> list[int]:
    """Return lengths of at most `longest` that sum up to `size`."""
    whole, rest = divmod(size, longest)
    return [longest] * whole + [rest] * bool(rest)


class BackendUnavailable(WattloopError):
    """A framework is not installed, or has no device here; the message gives the remedy."""


class Unsupported(WattloopError):
    """A framework cannot run this kernel in this format, style or place."""


TARGETS = {"sse": ("nehalem", "+sse4.2,-avx"), "avx": ("sandybridge", "+avx,-avx2,-avx512f")}
"""Style -> processor and features that Numba compiles for (thesis 3.4.2: SSE and AVX)."""
ONE_THREAD = ("scalar", "simd", *TARGETS)
"""Styles that use one thread, whatever was asked for."""


class Backend(ABC):
    """One framework on one device, in one style.

    A kernel's method puts the inputs on the device and returns a function that runs the kernel
    once. Nothing may be allocated or copied in that function which the framework's users would
    not allocate or copy in a loop.
    """

    name: ClassVar[str]
    package: ClassVar[str]
    """The module to import."""
    extra: ClassVar[str]
    """`pip install "wattloop[extra]"`; empty when it is always there."""
    devices: ClassVar[tuple[str, ...]]
    styles: ClassVar[tuple[str, ...]]
    """How its code can be run; the first is the usual one."""
    dtypes: ClassVar[tuple[str, ...]]
    methods: ClassVar[Mapping[str, str]]
    """Kernel -> what is called, for the reader of a table."""

    def __init__(self, device: str = "", style: str = "", threads: int | None = None) -> None:
        device = device or self.devices[0]
        self.device = device
        self.style = style or self.styles[0]
        self.threads = threads
        if device not in self.devices:
            raise Unsupported(f"{self.name} runs on {' and '.join(self.devices)}, not on {device}")
        if self.style not in self.styles:
            raise ConfigError(
                f"{self.name} has no style '{self.style}'; it has {', '.join(self.styles)}"
            )
        reason = self.missing()
        if reason:
            raise BackendUnavailable(reason)
        self._start()

    def _start(self) -> None:
        """Import the framework, and find the device."""

    @classmethod
    def missing(cls) -> str:
        """Why it cannot be imported, with the command that adds it; empty if it can."""
        if importlib.util.find_spec(cls.package) is not None:
            return ""
        return f"{cls.name} is not installed; {cls.remedy()}"

    @classmethod
    def remedy(cls) -> str:
        return f"pip install 'wattloop[{cls.extra}]'"

    def accepts(self, kernel: Kernel) -> None:
        self.accepts_on(kernel, self.device)

    @classmethod
    def accepts_on(cls, kernel: Kernel, device: str) -> None:
        """Raise `Unsupported` if the kernel's format does not exist on the device."""
        dtype = kernel.dtype.name
        if kernel.name not in cls.methods:
            raise Unsupported(f"{cls.name} does not run {kernel.name} here")
        if dtype not in kernel.dtypes:
            raise Unsupported(f"{kernel.name} is not run in {dtype}: {kernel.dtype_reason}")
        if dtype not in cls.dtypes:
            raise Unsupported(f"{cls.name} has no {dtype}; it has {', '.join(cls.dtypes)}")
        if dtype == "tf32" and device == "cpu":
            raise Unsupported("tf32 is a format of NVIDIA's tensor cores; use fp32 on a CPU")

    def prepare(self, kernel: Kernel) -> Run:
        """Put the inputs in place; return the function that runs the kernel."""
        self.accepts(kernel)
        method: Callable[[Any], Run] = getattr(self, kernel.name)
        return method(kernel)

    @abstractmethod
    def gemm(self, kernel: Gemm) -> Run:
        """Prepare C = A B."""

    @abstractmethod
    def spmv(self, kernel: Spmv) -> Run:
        """Prepare y = A x."""

    @abstractmethod
    def triad(self, kernel: Triad) -> Run:
        """Prepare a = b + s c."""

    @abstractmethod
    def stencil(self, kernel: Stencil) -> Run:
        """Prepare one step on the inner points."""

    @abstractmethod
    def montecarlo(self, kernel: MonteCarlo) -> Run:
        """Prepare an estimate of pi; each run draws other points."""

    @abstractmethod
    def dist(self, kernel: Dist) -> Run:
        """Prepare the distances."""

    @abstractmethod
    def elements(self, result: Any, flat_indices: Array) -> Array:
        """These elements of a result on the host, as float64."""

    def synchronise(self, result: Any) -> None:
        """Wait until everything that was started has been computed."""

    def free_memory_b(self) -> int | None:
        """Return the bytes that can still be allocated on the device; None if unknown."""
        return None

    def peak_memory_b(self) -> int | None:
        """Most bytes of device memory held at once; None on the host, where the kernel knows."""
        return None

    def device_name(self) -> str:
        return ""

    def version(self) -> str:
        module = importlib.import_module(self.package)
        return str(getattr(module, "__version__", "unknown"))

    def close(self) -> None:
        """Give memory back to the device."""
