"""The workers that do what was asked, and what is left out, with reasons."""

from dataclasses import dataclass

from wattloop.characterize.bench.choice import Choice, problems_of
from wattloop.characterize.bench.processors import pinned, usable_cpus
from wattloop.core.errors import ConfigError
from wattloop.hardware.host import Host
from wattloop.kernels.backend import Backend, Unsupported
from wattloop.kernels.kernel import Kernel
from wattloop.kernels.launch import Case, Job
from wattloop.kernels.loading import refuse_if_too_large
from wattloop.kernels.memory import available_b
from wattloop.kernels.registry import BACKENDS, backend_named

__all__ = ["LeftOut", "Plan", "planned"]

WARMUP_S = {"cpu": 0.15, "gpu": 0.5}
ONE_THREAD = ("scalar", "simd")
"""Styles that use one thread, whatever was asked for."""


@dataclass(frozen=True)
class LeftOut:
    """Something that is not run."""

    what: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """Jobs in the order in which they are done."""

    choice: Choice
    jobs: tuple[Job, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def measurements(self) -> int:
        """Kernels to measure, over all jobs."""
        return sum(len(job.cases) for job in self.jobs)

    @property
    def expected_s(self) -> float:
        """A guess, for the person who waits: measuring, preparing and compiling, importing."""
        each_s = self.choice.seconds + WARMUP_S[self.choice.device.kind] + 0.7
        return sum(len(job.cases) * each_s + 2.5 for job in self.jobs)


def planned(choice: Choice, host: Host) -> Plan:
    """A job for every framework, style and number of threads.

    Raises:
        ConfigError: more threads than CPUs, more memory than there is, or nothing left to run.
    """
    problems = [p for group in problems_of(choice).values() for p in group]
    device = choice.device.kind
    if device == "cpu":
        for problem in problems:
            refuse_if_too_large(problem, available_b(host.procfs), "cpu")
    jobs: list[Job] = []
    left_out: list[LeftOut] = []
    for name in choice.backends or BACKENDS:
        backend = backend_named(name)
        reason = _not_here(backend, choice)
        if reason:
            left_out.append(LeftOut(name, reason))
        elif device in backend.devices:
            kept, unsupported = _supported(backend, problems, device)
            left_out += unsupported
            if kept:
                jobs += _jobs(backend, kept, choice, host)
    if not jobs:
        reasons = "; ".join(dict.fromkeys(f"{o.what}: {o.reason}" for o in left_out))
        raise ConfigError(f"bench: nothing to run on the {device} ({reasons})")
    return Plan(choice, tuple(jobs), tuple(left_out))


def _not_here(backend: type[Backend], choice: Choice) -> str:
    """Why a framework is left out; empty when it is not, or when nobody asked for it."""
    named = bool(choice.backends)
    if choice.device.kind not in backend.devices:
        places = " and ".join(backend.devices)
        return f"runs on the {places}, not on the {choice.device.kind}" if named else ""
    if choice.styles and not set(choice.styles) & set(backend.styles):
        return f"has no style {', '.join(choice.styles)}; it has {', '.join(backend.styles)}"
    return backend.missing()


def _supported(
    backend: type[Backend], problems: list[Kernel], device: str
) -> tuple[list[Kernel], list[LeftOut]]:
    kept, left_out = [], []
    for problem in problems:
        try:
            backend.accepts_on(problem, device)
        except Unsupported as error:
            left_out.append(LeftOut(f"{backend.name} {problem.name}", str(error)))
        else:
            kept.append(problem)
    return kept, left_out


def _jobs(backend: type[Backend], problems: list[Kernel], choice: Choice, host: Host) -> list[Job]:
    cpus = usable_cpus()
    on_cpu = choice.device.kind == "cpu"
    # torch.compile only where it is asked for; numba's three styles are what it is here for
    usual = backend.styles if backend.name == "numba" else backend.styles[:1]
    styles = [s for s in backend.styles if s in choice.styles] if choice.styles else usual
    jobs = []
    for style in sorted(styles, key=list(reversed(backend.styles)).index):
        counts = (1,) if style in ONE_THREAD else choice.threads or (len(cpus),)
        for threads in counts:
            chosen = pinned(threads, host, cpus)
            jobs.append(
                Job(
                    backend=backend.name,
                    style=style,
                    threads=threads,
                    device=choice.device.kind,
                    cases=tuple(Case(p.name, p.size, p.dtype.name) for p in problems),
                    seconds=choice.seconds,
                    warmup_s=WARMUP_S[choice.device.kind],
                    gpu=choice.device.gpu,
                    # a GPU's helper threads go where the system puts them
                    cpus=chosen if on_cpu else (),
                )
            )
    return jobs
