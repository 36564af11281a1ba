"""Gains of SIMD and threads in time and energy (thesis, tables 3.15 and 3.16).

SIMD is compared with scalar code on one thread. More threads are compared with one thread of the
same code: `parallel` on one thread where that was run, else `simd`, which is the same loop.
"""

import operator
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from wattloop.bench.result import KernelResult
from wattloop.kernels.backend import ONE_THREAD

NOISE = 0.02
"""Less energy saved than this share does not count as paying."""


class Speedup(NamedTuple):
    """One result against its reference; factors above 1 are gains.

    `energy` is of the scope's total, `application` of what is left without idling; None where
    unknown, or where what is left is less than its uncertainty.
    """

    result: KernelResult
    reference: KernelResult
    time: float
    energy: float | None
    application: float | None
    dram: float | None


class StopsPaying(NamedTuple):
    """From how many threads on a kernel saves no more energy, and no more time."""

    kernel: str
    backend: str
    style: str
    size: int
    energy_threads: int | None
    time_threads: int
    tried: tuple[int, ...]

    @property
    def text(self) -> str:
        most = self.tried[-1]
        if self.energy_threads is None:
            return f"time falls up to {self.time_threads} of {most} threads; energy is not known"
        if self.energy_threads == most:
            return f"energy still falls at {most} threads, the most that were tried"
        energy, time = _threads(self.energy_threads), _threads(self.time_threads)
        return f"energy stops falling at {energy}, time at {time}"


def speedups(results: Sequence[KernelResult]) -> list[Speedup]:
    """Every CPU result that has something to be compared with, references included."""
    found = []
    for result in results:
        reference = _reference(result, results)
        if reference is not None:
            found.append(_speedup(result, reference))
    return found


def threads_stop_paying(results: Sequence[KernelResult]) -> list[StopsPaying]:
    """For each kernel that was run on several numbers of threads."""
    groups: dict[tuple[str, str, str, int, str], dict[int, KernelResult]] = {}
    for result in results:
        if result.ok and result.scope == "cpu" and result.style not in ONE_THREAD:
            key = (result.kernel, result.backend, result.style, result.size, result.dtype)
            groups.setdefault(key, {})[result.threads] = result
    found = []
    for (kernel, backend, style, size, dtype), by_threads in groups.items():
        one = _one_thread(kernel, size, dtype, results) if backend == "numba" else None
        if 1 not in by_threads and one is not None:
            by_threads[1] = one
        if len(by_threads) > 1:
            tried = tuple(sorted(by_threads))
            ordered = [by_threads[count] for count in tried]
            times = [r.time_s for r in ordered]
            # total energy: idling is paid for as well, and threads shorten it
            energies = [r.energy_j() for r in ordered]
            found.append(
                StopsPaying(
                    kernel, backend, style, size,
                    energy_threads=_stops(tried, energies),
                    time_threads=_stops(tried, times) or tried[-1],
                    tried=tried,
                )
            )  # fmt: skip
    return found


def _reference(result: KernelResult, results: Iterable[KernelResult]) -> KernelResult | None:
    if not result.ok or result.scope != "cpu":
        return None
    key = operator.attrgetter("kernel", "size", "dtype", "backend", "device")
    same = [r for r in results if r.ok and r.threads == 1 and key(r) == key(result)]
    if result.style in ONE_THREAD:
        wanted: tuple[str, ...] = ("scalar",)
    elif result.style == "parallel":
        wanted = ("parallel", "simd")
    else:
        wanted = (result.style,)
    return next((r for style in wanted for r in same if r.style == style), None)


def _one_thread(
    kernel: str, size: int, dtype: str, results: Iterable[KernelResult]
) -> KernelResult | None:
    wanted = (kernel, size, dtype, "simd")
    found = (r for r in results if r.ok and (r.kernel, r.size, r.dtype, r.style) == wanted)
    return next(found, None)


def _speedup(result: KernelResult, reference: KernelResult) -> Speedup:
    assert result.time_s is not None and reference.time_s is not None
    return Speedup(
        result,
        reference,
        reference.time_s / result.time_s,
        _ratio(reference.energy_j(), result.energy_j()),
        _ratio(_above_noise(reference), _above_noise(result)),
        _ratio(reference.energy_j("dram"), result.energy_j("dram")),
    )


def _above_noise(result: KernelResult) -> float | None:
    """Application energy, unless it drowns in the uncertainty of what was subtracted."""
    part = result.scopes.get(result.scope)
    if part is None or part.application_j is None:
        return None
    return result.application_j() if part.application_j > part.application_uncertainty_j else None


def _threads(count: int) -> str:
    return f"{count} thread" + ("s" if count > 1 else "")


def _ratio(before: float | None, after: float | None) -> float | None:
    if before is None or after is None or before <= 0 or after <= 0:
        return None
    return before / after


def _stops(tried: Sequence[int], values: Sequence[float | None]) -> int | None:
    """The first count after which nothing later is better by more than the noise."""
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return None
    for place, count in enumerate(tried):
        if all(later > known[place] * (1 - NOISE) for later in known[place + 1 :]):
            return count
    return tried[-1]
