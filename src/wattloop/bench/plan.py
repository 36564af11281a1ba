"""The kernels, frameworks and threads that a user selects, and the workers that run them."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

from wattloop.core.errors import ConfigError
from wattloop.hardware.host import Host
from wattloop.kernels.backend import ONE_THREAD, Backend, Unsupported
from wattloop.kernels.device import Device, chosen_device
from wattloop.kernels.kernel import Kernel, dtype_named
from wattloop.kernels.loaded_kernel import available_b
from wattloop.kernels.registry import BACKENDS, KERNELS, backend_named, kernel_named, parse_size
from wattloop.kernels.worker import KernelCase, KernelJob


def usable_cpus() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def choose_cpus(threads: int, host: Host, cpus: list[int]) -> tuple[int, ...]:
    """So many of `cpus`, on as many cores as possible. Raises ConfigError: there are fewer."""
    if not 1 <= threads <= len(cpus):
        raise ConfigError(
            f"--threads {threads}: this process may use {len(cpus)} CPU(s); give 1 to {len(cpus)}"
        )
    # a core's second thread shares its units: it comes after all first threads
    order = sorted(cpus, key=lambda cpu: (_place_in_core(cpu, host), cpu))
    return tuple(sorted(order[:threads]))


def _place_in_core(cpu: int, host: Host) -> int:
    text = host.read_text("sys", f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") or ""
    siblings: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        try:
            siblings += range(int(first), int(last or first) + 1)
        except ValueError:
            return 0
    return siblings.index(cpu) if cpu in siblings else 0


DEFAULT_SIZE = {"cpu": "small", "gpu": "large"}
DEFAULT_SECONDS = {"cpu": 0.6, "gpu": 2.0}
"""Long against the sensor's update, short enough for a first look in two minutes."""
SHORTEST_S, LONGEST_S = 0.05, 3_600.0


@dataclass(frozen=True)
class BenchRequest:
    """A checked request.

    Attributes:
        backends: named by the person; empty means all that are installed.
        styles: named by the person; empty means all of a framework's.
        threads: CPU threads; empty means the framework's habit: all of them.
        sizes: words such as `small`, `gemm=4096`, or a number where there is one kernel.
    """

    kernels: tuple[str, ...]
    backends: tuple[str, ...]
    styles: tuple[str, ...]
    threads: tuple[int, ...]
    sizes: tuple[str, ...]
    dtype: str
    device: Device
    seconds: float

    @classmethod
    def of(
        cls,
        *,
        kernels: str = "",
        backends: str = "",
        styles: str = "",
        threads: str = "",
        sizes: str = "",
        dtype: str = "fp32",
        device: str = "",
        seconds: float | None = None,
        host: Host | None = None,
    ) -> "BenchRequest":
        """Parse words of a command line. Raises ConfigError, with the known words."""
        place = chosen_device(device, host or Host.from_environment())
        dtype_named(dtype)
        named = tuple(split_words(backends))
        for backend in named:
            backend_named(backend)
        for style in split_words(styles):
            _check_style(style)
        choice = cls(
            kernels=tuple(split_words(kernels)) or tuple(KERNELS),
            backends=named,
            styles=tuple(split_words(styles)),
            threads=tuple(_threads(threads)),
            sizes=tuple(split_words(sizes)),
            dtype=dtype,
            device=place,
            seconds=_seconds(DEFAULT_SECONDS[place.kind] if seconds is None else seconds),
        )
        selected_kernels(choice)
        return choice


def selected_kernels(choice: BenchRequest) -> dict[str, list[Kernel]]:
    kinds = {name: kernel_named(name) for name in choice.kernels}
    asked: dict[str, list[str]] = {name: [] for name in kinds}
    for word in choice.sizes:
        name, given, size = word.rpartition("=")
        if given and name not in kinds:
            raise ConfigError(f"--sizes {word}: '{name}' is not among {', '.join(kinds)}")
        for target in [name] if given else kinds:
            asked[target].append(size)
    dtype = dtype_named(choice.dtype)
    return {
        name: [
            kind(parse_size(kind, size), dtype)
            for size in asked[name] or [DEFAULT_SIZE[choice.device.kind]]
        ]
        for name, kind in kinds.items()
    }


def split_words(text: str) -> list[str]:
    """A list written with commas, each word once."""
    return list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _check_style(style: str) -> None:
    known = dict.fromkeys(s for name in BACKENDS for s in backend_named(name).styles)
    if style not in known:
        raise ConfigError(f"unknown style '{style}'; known are {', '.join(known)}")


def _threads(text: str) -> Sequence[int]:
    numbers = []
    for word in split_words(text):
        if not word.isdecimal() or int(word) < 1:
            raise ConfigError(f"--threads {text}: write numbers from 1 with commas, such as 1,2,4")
        numbers.append(int(word))
    return sorted(set(numbers))


def _seconds(seconds: float) -> float:
    if not (math.isfinite(seconds) and SHORTEST_S <= seconds <= LONGEST_S):
        raise ConfigError(f"--seconds {seconds:g}: use {SHORTEST_S:g} to {LONGEST_S:g}")
    return seconds


WARMUP_S = {"cpu": 0.15, "gpu": 0.5}


@dataclass(frozen=True)
class SkippedKernel:
    """Something that is not run."""

    what: str
    reason: str


@dataclass(frozen=True)
class BenchPlan:
    """Jobs in the order in which they are done."""

    choice: BenchRequest
    jobs: tuple[KernelJob, ...]
    left_out: tuple[SkippedKernel, ...]

    @property
    def measurements(self) -> int:
        return sum(len(job.cases) for job in self.jobs)

    @property
    def expected_s(self) -> float:
        """A guess, for the person who waits: measuring, preparing and compiling, importing."""
        each_s = self.choice.seconds + WARMUP_S[self.choice.device.kind] + 0.7
        return sum(len(job.cases) * each_s + 2.5 for job in self.jobs)


def make_plan(choice: BenchRequest, host: Host) -> BenchPlan:
    """Return a job for every framework, style and number of threads. Raises ConfigError."""
    problems = [p for group in selected_kernels(choice).values() for p in group]
    device = choice.device.kind
    if device == "cpu":
        for problem in problems:
            problem.check_memory(available_b(host.procfs), "cpu")
    jobs: list[KernelJob] = []
    left_out: list[SkippedKernel] = []
    for name in choice.backends or BACKENDS:
        backend = backend_named(name)
        reason = _not_here(backend, choice)
        if reason:
            left_out.append(SkippedKernel(name, reason))
        elif device in backend.devices:
            kept, unsupported = _supported(backend, problems, device)
            left_out += unsupported
            if kept:
                jobs += _jobs(backend, kept, choice, host)
    if not jobs:
        reasons = "; ".join(dict.fromkeys(f"{o.what}: {o.reason}" for o in left_out))
        raise ConfigError(f"bench: nothing to run on the {device} ({reasons})")
    return BenchPlan(choice, tuple(jobs), tuple(left_out))


def _not_here(backend: type[Backend], choice: BenchRequest) -> str:
    """Return why a framework is left out; empty when it is used or was not asked for."""
    named = bool(choice.backends)
    if choice.device.kind not in backend.devices:
        places = " and ".join(backend.devices)
        return f"runs on the {places}, not on the {choice.device.kind}" if named else ""
    if choice.styles and not set(choice.styles) & set(backend.styles):
        return f"has no style {', '.join(choice.styles)}; it has {', '.join(backend.styles)}"
    return backend.missing()


def _supported(
    backend: type[Backend], problems: list[Kernel], device: str
) -> tuple[list[Kernel], list[SkippedKernel]]:
    kept, left_out = [], []
    for problem in problems:
        try:
            backend.accepts_on(problem, device)
        except Unsupported as error:
            left_out.append(SkippedKernel(f"{backend.name} {problem.name}", str(error)))
        else:
            kept.append(problem)
    return kept, left_out


def _jobs(
    backend: type[Backend], problems: list[Kernel], choice: BenchRequest, host: Host
) -> list[KernelJob]:
    cpus = usable_cpus()
    on_cpu = choice.device.kind == "cpu"
    # torch.compile, SSE and AVX only where they are asked for; numba is here for the other three
    usual = backend.styles[:3] if backend.name == "numba" else backend.styles[:1]
    styles = [s for s in backend.styles if s in choice.styles] if choice.styles else usual
    jobs = []
    for style in sorted(styles, key=list(reversed(backend.styles)).index):
        counts = (1,) if style in ONE_THREAD else choice.threads or (len(cpus),)
        for threads in counts:
            chosen = choose_cpus(threads, host, cpus)
            jobs.append(
                KernelJob(
                    backend=backend.name,
                    style=style,
                    threads=threads,
                    device=choice.device.kind,
                    cases=tuple(KernelCase(p.name, p.size, p.dtype.name) for p in problems),
                    seconds=choice.seconds,
                    warmup_s=WARMUP_S[choice.device.kind],
                    gpu=choice.device.gpu,
                    # a GPU's helper threads go where the system puts them
                    cpus=chosen if on_cpu else (),
                )
            )
    return jobs
