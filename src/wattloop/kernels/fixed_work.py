"""A fixed amount of work for comparing settings: a slower GPU takes longer.

How many runs that is depends on the kernel and its size only, never on a measurement: the same
words are the same work on every setting and whenever a sweep is resumed.
"""

import importlib.util
import sys

from wattloop.hardware.host import Host
from wattloop.kernels.device import chosen_device
from wattloop.kernels.kernel import Kernel, dtype_named
from wattloop.kernels.registry import BACKENDS, backend_named, kernel_named, parse_size

SECONDS = 10.0
NOMINAL = {"cpu": (10e9, 5e9), "gpu": (40e12, 2e12)}
"""FLOP/s and B/s of a middling device, which only decide how many runs are a sensible number."""
DRAWING = 60.0
"""Drawing a random point costs about so many times its four operations."""
DEFAULT_SIZE = {"cpu": "small", "gpu": "large"}


def work_command(kernel: str, backend: str = "", device: str = "") -> list[str]:
    """Return the program that does about ten seconds of a kernel on a middling device."""
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
